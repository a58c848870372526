"""What a recipe takes over from a parent draft, and what is refused before anything is spent."""

from dataclasses import replace
from typing import Any

import pytest

from errors import UserError
from kimi_adapters.inheritance import inherit
from kimi_adapters.recipe import Recipe
from tests.kimi_adapters.draft_fixtures import LAYER_IDS, VERIFIER

ROPE = {"rope_type": "default", "rope_theta": 2e4}
LAYER: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 32, "vocab_size": 97, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 24, "max_position_embeddings": 64, "rope_parameters": ROPE,
    "rms_norm_eps": 1e-5,
}  # fmt: skip
PARENT: dict[str, Any] = {
    "speculators_model_type": "eagle3", "transformer_layer_config": LAYER, "eagle_aux_hidden_state_layer_ids": LAYER_IDS,
    "norm_before_residual": False,
    "norm_before_fc": True, "fc_norm": False, "norm_output": False,
}  # fmt: skip
FITTING = Recipe(num_layers=2, norm_before_fc=True)


def test_shapes_left_open_are_the_parents_and_its_longest_position_is_not() -> None:
    recipe = inherit(replace(FITTING, lr=2e-4), PARENT, VERIFIER, LAYER_IDS)
    shape = (recipe.num_heads, recipe.num_kv_heads, recipe.head_dim, recipe.intermediate_size, recipe.rope_theta)
    assert shape == (8, 2, 16, 24, 2e4)
    assert recipe.max_position_embeddings is None and recipe.lr == 2e-4 and recipe.num_layers == 2
    assert inherit(replace(FITTING, num_heads=8, rope_theta=2e4), PARENT, VERIFIER, LAYER_IDS) == inherit(
        FITTING, PARENT, VERIFIER, LAYER_IDS
    )


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"layer": "qwen3"}, "training.layer llama and not qwen3"),
        ({"num_layers": 1}, "training.num_layers 2 and not 1"),
        ({"num_heads": 4}, "training.num_heads 8 and not 4"),
        ({"num_kv_heads": 8}, "training.num_kv_heads 2"),
        ({"head_dim": 8}, "training.head_dim 16"),
        ({"intermediate_size": 48}, "training.intermediate_size 24"),
        ({"rope_theta": 1e4}, "training.rope_theta 20000"),
        ({"norm_before_residual": True}, "training.norm_before_residual False and not True"),
        ({"norm_before_fc": False, "norm_output": True}, "training.norm_before_fc True and not False, training.norm_output"),
        ({"norm_before_fc": False, "fc_norm": True}, "training.fc_norm"),
    ],
)
def test_what_differs_is_named_in_one_sentence(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named) as refused:
        inherit(replace(FITTING, **changes), PARENT, VERIFIER, LAYER_IDS)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        ({"hidden_size": 64}, "hidden_size 64, and this one has 32"),
        ({"vocab_size": 98}, "vocab_size 98"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 2e4, "factor": 8.0}}, "rope_type 'yarn' and not 'default'"),
        ({"attention_bias": True}, "biases in its attention"),
    ],
)
def test_a_draft_of_another_verifier_or_kind_is_refused(layer: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        inherit(FITTING, {**PARENT, "transformer_layer_config": {**LAYER, **layer}}, VERIFIER, LAYER_IDS)


def test_other_auxiliary_layers_are_refused_and_unknown_ones_are_taken_for_the_same() -> None:
    with pytest.raises(UserError, match=r"auxiliary layers \[1, 3, 5\], and the states are of \[2, 3, 5\]"):
        inherit(FITTING, PARENT, VERIFIER, [2, 3, 5])
    converted = {**PARENT, "eagle_aux_hidden_state_layer_ids": None}
    assert inherit(FITTING, converted, VERIFIER, LAYER_IDS).num_heads == 8
