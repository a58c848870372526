"""The draft as speculators knows it: its configuration, its construction from verifier rows, and its files."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from torch import Tensor
from transformers import LlamaConfig, Qwen3Config

from errors import UserError
from kimi_adapters.config import TextConfig
from kimi_adapters.draft_layers import DraftShape
from kimi_adapters.draft_sizes import draft_sizes
from kimi_adapters.draft_vocabulary import DraftVocabulary
from kimi_adapters.recipe import Recipe
from kimi_adapters.rope_parameters import rope_fields, rope_parameters
from kimi_adapters.tensor_file import OpenOutput
from kimi_adapters.torch_file import write_tensors
from kimi_adapters.weights import Checkpoint

VERIFIER_ONLY = ("verifier_norm.weight", "verifier_lm_head.weight")
_LAYERS = {"llama": LlamaConfig, "qwen3": Qwen3Config}
_ONLY = {"llama": {"mlp_bias": False}, "qwen3": {"use_sliding_window": False}}  # what one kind has and the other has not
_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
EMBEDDINGS, HEAD = "embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class VerifierRows:
    """What the draft takes from the verifier: embed [V, H], the final norm's gain [H], lm_head [draft vocabulary, H]."""

    embed: Tensor
    norm: Tensor
    lm_head: Tensor


def verifier_rows(checkpoint: Checkpoint, vocabulary: DraftVocabulary) -> VerifierRows:
    """The rows in float32. A tied head is read once."""
    embed = checkpoint.embed(torch.float32)
    head = embed if checkpoint.config.tie_word_embeddings else checkpoint.lm_head(torch.float32)
    return VerifierRows(embed, checkpoint.norm(torch.float32), head[vocabulary.targets()])


def attention_for(device: torch.device) -> str:
    """flex on CUDA; its backward does not exist on CPU, where sdpa takes the same mask as booleans."""
    return "simple_flex_attention" if device.type == "cuda" else "sdpa"


def draft_config(
    recipe: Recipe,
    verifier: TextConfig,
    layer_ids: Sequence[int],
    draft_vocab_size: int,
    attention: str,
    verifier_name: str | None = None,
    verifier_architectures: Sequence[str] = ("LlamaForCausalLM",),
) -> Eagle3SpeculatorConfig:
    """The draft's configuration with every field written out: nothing leaks in from the verifier's own class.

    Taken from the verifier: sizes of the residual stream and vocabulary, norm epsilon, token ids, rotary base (its
    stretch only where the recipe asks for it), and the shapes that the recipe leaves None.
    UserError: a draft vocabulary larger than the verifier's; head counts that do not divide.
    """
    if draft_vocab_size > verifier.vocab_size:
        raise UserError(
            f"The draft vocabulary has {draft_vocab_size} tokens, the verifier's {verifier.vocab_size}; "
            "set vocabulary.size to no more than that."
        )
    sizes = draft_sizes(recipe, verifier)
    layer = _LAYERS[recipe.layer](
        vocab_size=verifier.vocab_size,
        hidden_size=verifier.hidden_size,
        intermediate_size=sizes.intermediate_size,
        num_hidden_layers=recipe.num_layers,
        num_attention_heads=sizes.num_heads,
        num_key_value_heads=sizes.num_kv_heads,
        head_dim=sizes.head_dim,
        hidden_act="silu",
        max_position_embeddings=recipe.max_position_embeddings or verifier.max_position_embeddings,
        rms_norm_eps=verifier.rms_norm_eps,
        rope_parameters=rope_parameters(verifier, recipe.rope_theta or verifier.rope_theta, recipe.rope == "verifier"),
        attention_bias=False,
        attention_dropout=0.0,
        **_ONLY[recipe.layer],
        initializer_range=0.02,
        tie_word_embeddings=False,
        bos_token_id=verifier.bos_token_id,
        eos_token_id=list(verifier.eos_token_ids) or None,
        pad_token_id=verifier.pad_token_id,
    )
    # speculators turns None into flex, whose backward fails on CPU, and it is never saved: set it every time.
    layer._attn_implementation = attention
    return Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=draft_vocab_size,
        norm_before_residual=recipe.norm_before_residual,
        norm_before_fc=recipe.norm_before_fc,
        fc_norm=recipe.fc_norm,
        norm_output=recipe.norm_output,
        embed_requires_grad=recipe.train_embeddings,
        eagle_aux_hidden_state_layer_ids=list(layer_ids),
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=recipe.ttt_steps)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=verifier_name, architectures=list(verifier_architectures)),
        ),
    )


def build_draft(
    config: Eagle3SpeculatorConfig,
    rows: VerifierRows,
    vocabulary: DraftVocabulary,
    seed: int,
    parent: Mapping[str, Tensor] | None = None,
    train_lm_head: bool = False,
    fc_start: str = "random",
) -> Eagle3DraftModel:
    """A float32 draft on CPU: initialised from `seed` and as `fc_start` says, then from the tensors of `parent` where one is
    given.

    Embeddings, final norm and head are the verifier's and frozen, as speculators has it, but for embeddings that the
    configuration wants trained and, with `train_lm_head`, the head; nothing is read from disk.
    `parent` (see `warm_start.parent_tensors`) may bring embeddings and a head of its own, which its layers go with; what
    the draft is trained against stays the verifier's. UserError: rows or a parent of other shapes.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Eagle3DraftModel(config).float()
    tensors = {
        EMBEDDINGS: rows.embed,
        HEAD: rows.lm_head,
        "verifier_lm_head.weight": rows.lm_head,
        "verifier_norm.weight": rows.norm,
    }
    if vocabulary.d2t is not None and vocabulary.t2d is not None:
        tensors |= {"d2t": vocabulary.d2t, "t2d": vocabulary.t2d}
    copy_tensors(model, tensors, "The verifier")
    if fc_start == "last":
        _hand_on_the_last_state(model.fc.weight)
    if parent is not None:
        own = [name for name, _ in model.named_parameters() if name not in VERIFIER_ONLY and name in parent]
        copy_tensors(model, {name: parent[name] for name in own}, "The parent draft")
    trained = {HEAD: train_lm_head, EMBEDDINGS: config.embed_requires_grad}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trained.get(name, name not in tensors))
    if config.embed_requires_grad:
        _let_embeddings_learn(model)
    return model.train()


class _LearningEmbedding(torch.nn.Embedding):
    """Looks up with a gradient though its caller forbids one."""

    def forward(self, ids: Tensor) -> Tensor:
        with torch.enable_grad():
            return super().forward(ids)


def _hand_on_the_last_state(weight: Tensor) -> None:
    """Of the fusing layer's [H, n · H]: the identity on the last state, and a tenth of its random start on all."""
    with torch.no_grad():
        weight *= 0.1
        weight[:, -len(weight) :].diagonal().add_(1)


def _let_embeddings_learn(model: Eagle3DraftModel) -> None:
    """speculators 0.9 has `embed_requires_grad`, but its forward looks embeddings up under `no_grad`, where none arrives.

    And its padding index would keep one row, a token like others (SmolLM2 pads with <|im_end|>), from learning.
    """
    model.embed_tokens.__class__ = _LearningEmbedding
    model.embed_tokens.padding_idx = None


def copy_tensors(model: Eagle3DraftModel, tensors: Mapping[str, Tensor], source: str) -> None:
    """Copies tensors into the model by name; UserError where a shape differs."""
    state = model.state_dict(keep_vars=True)
    with torch.no_grad():
        for name, tensor in tensors.items():
            if state[name].shape != tensor.shape:
                raise UserError(
                    f"{source} has {name} of shape {list(tensor.shape)} where the draft needs "
                    f"{list(state[name].shape)}; train a draft of the verifier's own sizes."
                )
            state[name].copy_(tensor)


def trainable_state(model: Eagle3DraftModel) -> dict[str, Tensor]:
    """A copy of the trained tensors, on CPU, in the model's order."""
    return {name: value.detach().cpu().clone() for name, value in model.named_parameters() if value.requires_grad}


def draft_shape(model: Eagle3DraftModel) -> DraftShape:
    """The shape that `draft_layers` works from."""
    return DraftShape.from_config(draft_config_values(model.config, torch.float32))


def draft_config_values(config: Eagle3SpeculatorConfig, dtype: torch.dtype) -> dict[str, Any]:
    """config.json of a speculators-format directory: a closed list of fields, so that nothing stray is saved."""
    layer, how = config.transformer_layer_config, config.speculators_config
    layer_fields = (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "hidden_act", "max_position_embeddings", "rms_norm_eps", "attention_bias",
        "attention_dropout", "initializer_range", "tie_word_embeddings", "bos_token_id", "eos_token_id",
        "pad_token_id", *_ONLY[layer.model_type],
    )  # fmt: skip
    return {
        "architectures": list(config.architectures),
        "speculators_model_type": config.speculators_model_type,
        "speculators_version": config.speculators_version,
        "speculators_config": how.model_dump(),
        "draft_vocab_size": config.draft_vocab_size,
        "eagle_aux_hidden_state_layer_ids": list(config.eagle_aux_hidden_state_layer_ids or ()),
        "embed_requires_grad": config.embed_requires_grad,
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": config.norm_before_fc,
        "fc_norm": config.fc_norm,
        "norm_output": config.norm_output,
        "target_hidden_size": config.target_hidden_size,
        "tie_word_embeddings": False,
        "dtype": str(dtype).removeprefix("torch."),
        "transformer_layer_config": {
            "model_type": layer.model_type,
            "architectures": [_ARCHITECTURES[layer.model_type]],
            "rope_parameters": rope_fields(layer.rope_parameters),
            **{name: getattr(layer, name) for name in layer_fields},
        },
    }


def save_draft(model: Eagle3DraftModel, open_output: OpenOutput, dtype: torch.dtype = torch.float32) -> None:
    """Writes config.json and model.safetensors, the same bytes for the same weights.

    Without the verifier's norm and second head, as speculators saves it; d2t and t2d are there only when the draft
    vocabulary is smaller than the target's.
    """
    text = json.dumps(draft_config_values(model.config, dtype), indent=2, sort_keys=True) + "\n"
    with open_output("config.json") as file:
        file.write(text.encode())
    tensors = {name: value for name, value in model.state_dict().items() if name not in VERIFIER_ONLY}
    with open_output("model.safetensors") as file:
        write_tensors(file, tensors, dtype, {"format": "pt"})
