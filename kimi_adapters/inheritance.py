"""What a recipe takes over from a parent draft, and what of it must be the parent's. Plain data: a plan asks it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from errors import UserError
from kimi_adapters.config_fields import TextConfig
from kimi_adapters.recipe import Recipe
from kimi_adapters.rope_parameters import rope_parameters

# A field of the recipe, and where a draft's configuration has it: in its layer, or beside it.
_LAYER_FIELDS = {
    "layer": "model_type",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "intermediate_size": "intermediate_size",
}
_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


def inherit(recipe: Recipe, parent: Mapping[str, Any], verifier: TextConfig, layer_ids: Sequence[int]) -> Recipe:
    """The recipe with the parent's shape where it leaves one open.

    `parent`: the parent's configuration in speculators' form (`draft.draft_config_values`). Its longest position is
    not taken over: no weight depends on it. UserError: a parent for a verifier of other sizes, other auxiliary layers,
    or a shape or flag in which the recipe differs from it.
    """
    layer = parent["transformer_layer_config"]
    _of_this_verifier(layer, verifier)
    ids = parent.get("eagle_aux_hidden_state_layer_ids")
    if ids and list(ids) != list(layer_ids):
        raise UserError(
            f"training.parent reads the auxiliary layers {list(ids)}, and the states are of {list(layer_ids)}: set "
            "hidden_states.layer_ids to the parent's, or leave training.parent empty"
        )
    theirs = {name: layer[there] for name, there in _LAYER_FIELDS.items()} | {name: parent[name] for name in _FLAGS}
    theirs["rope_theta"] = float(layer["rope_parameters"]["rope_theta"])
    _same_stretch(layer["rope_parameters"], rope_parameters(verifier, theirs["rope_theta"], recipe.rope == "verifier"))
    asked = {name: getattr(recipe, name) for name in theirs}
    if differing := [name for name, value in asked.items() if value is not None and value != theirs[name]]:
        told = ", ".join(f"training.{name} {theirs[name]} and not {asked[name]}" for name in differing)
        raise UserError(f"the draft that training.parent names has {told}: set it as the parent has it, or train without it")
    return replace(recipe, **theirs)


def _of_this_verifier(layer: Mapping[str, Any], verifier: TextConfig) -> None:
    """UserError: sizes of another verifier, or what our drafts never have."""
    for name in ("hidden_size", "vocab_size"):
        if layer[name] != getattr(verifier, name):
            raise UserError(
                f"training.parent names a draft for a verifier of {name} {layer[name]}, and this one has "
                f"{getattr(verifier, name)}: give a draft of this verifier"
            )
    if layer.get("attention_bias"):
        raise UserError(
            "training.parent names a draft with biases in its attention, and drafts trained here have none: train without it"
        )


def _same_stretch(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """UserError: positions that are stretched in one of the two, or in another way. What a parent leaves out is a default."""
    differing = [name for name in ours if name in theirs and theirs[name] != ours[name]]
    if differing:
        told = ", ".join(f"{name} {theirs[name]!r} and not {ours[name]!r}" for name in differing)
        raise UserError(
            f"the draft that training.parent names has positions of {told}: set training.rope as it has them (plain, or the "
            "verifier's), or train without it"
        )
