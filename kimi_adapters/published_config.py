"""A published draft's config.json, of either format, as ours: the fields of a speculators directory, all written out.

speculators/vLLM: the layer's fields nested in `transformer_layer_config`, auxiliary ids as ours.
EAGLE/SGLang: flat, the architecture LlamaForCausalLMEagle3 and the like, ids k - 1 under `eagle_config`.
Read from vLLM 0.32.0 (transformers_utils/configs/speculators, config/speculative.py, models/llama_eagle3.py) and
SGLang 0.5.23 (srt/models/llama_eagle3.py, deepseek_v2.py, speculative/).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from errors import UserError
from kimi_adapters.config_fields import Fields
from kimi_adapters.deepseek_config import FAMILY as DEEPSEEK
from kimi_adapters.layer_ids import check_layer_ids, default_layer_ids
from kimi_adapters.published_rope import read_rope

FLAT_ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "LlamaForCausalLM", "Eagle3Qwen3ForCausalLM")
LAYER_TYPES = ("llama", "qwen3")
_ONLY = {"llama": {"mlp_bias": False}, "qwen3": {"use_sliding_window": False}}  # what one type has and the other has not
INDEX = "model.safetensors.index.json"
_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


class Sizes(Protocol):
    """What a draft must agree with of its verifier; a TextConfig has it."""

    @property
    def family(self) -> str: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...


@dataclass(frozen=True)
class VerifierSizes:
    """`Sizes` where there is no configuration at hand."""

    family: str
    num_layers: int
    hidden_size: int
    vocab_size: int


def published_files(folder: Path) -> list[Path]:
    """All that is read of a published draft: config.json, the index, and the files that it names, else *.safetensors.

    UserError: no safetensors there, or a malformed index.
    """
    index = folder / INDEX
    try:
        named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()) if index.exists() else ()
        weights = sorted(folder / name for name in named) or sorted(folder.glob("*.safetensors"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{index} is not a safetensors index; restore it.") from error
    absent = [path.name for path in weights if not path.exists()]
    if absent:
        raise UserError(f"{folder} lacks {absent[0]}, which {INDEX} names; complete it.")
    if not weights:
        pickled = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
        beside = f" ({pickled[0]} is a pickle, which is not read)" if pickled else ""
        raise UserError(f"{folder} has no safetensors files{beside}; give a draft's directory with its weights in safetensors.")
    return [folder / "config.json", *([index] if index.exists() else []), *weights]


def read_published_config(folder: Path, verifier: Sizes | None = None) -> dict[str, Any]:
    """config.json of `folder` in our form. Without ids in it, the list of ids is the engines' default for `verifier`, and
    empty where none is given.

    UserError: not JSON, another architecture or algorithm, quantized weights, a field missing or contradicting.
    """
    path = folder / "config.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); give a draft's directory with its config.json.") from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}); restore the draft's config.json.") from error
    if not isinstance(values, dict):
        raise UserError(f"{path} is not a JSON object; restore the draft's config.json.")
    fields = Fields(values, str(path))
    layer = fields.inside("transformer_layer_config")
    if layer.values:
        _check_speculators(fields)
        kind = layer.optional("model_type", str, "llama")
    else:
        layer, kind = fields, _flat_kind(fields)
    if values.get("quantization_config") or layer.values.get("quantization_config"):
        raise UserError(f"{path} has a quantization_config; give the draft's unquantized weights.")
    return _ours(fields, _layer(layer, kind), verifier)


def _check_speculators(fields: Fields) -> None:
    algorithm = fields.values.get("speculators_model_type")
    if algorithm != "eagle3":
        raise UserError(f"{fields.where} is of the algorithm {algorithm!r}; give an eagle3 draft.")
    if "norm_before_residual" not in fields.values:
        raise UserError(
            f"{fields.where} has no 'norm_before_residual', which vLLM takes for true and speculators for false; write it out."
        )


def _flat_kind(fields: Fields) -> str:
    """The type of the layers, which goes by the architecture, whatever the model_type."""
    named = fields.values.get("architectures")
    if not isinstance(named, list) or len(named) != 1 or named[0] not in FLAT_ARCHITECTURES:
        raise UserError(
            f"{fields.where} is of the architecture {named!r}; drafts of Llama or Qwen3 layers are read: "
            f"{', '.join(FLAT_ARCHITECTURES)}, or speculators' format."
        )
    return "qwen3" if "Qwen3" in named[0] else "llama"


def _ours(fields: Fields, shape: dict[str, Any], verifier: Sizes | None) -> dict[str, Any]:
    eagle = fields.inside("eagle_config")
    if eagle.values.get("use_aux_hidden_state", True) is not True:
        raise UserError(f"{fields.where} takes no auxiliary hidden states (EAGLE-1); give an EAGLE-3 draft.")
    wide = fields.optional("target_hidden_size", int, shape["hidden_size"])
    if wide != shape["hidden_size"]:
        raise UserError(
            f"{fields.where} reads states of size {wide} into a draft of size {shape['hidden_size']}; give a draft of one size."
        )
    if verifier is not None and (shape["vocab_size"], wide) != (verifier.vocab_size, verifier.hidden_size):
        raise UserError(
            f"{fields.where} is for a verifier of {shape['vocab_size']} tokens and hidden size {wide}, and this one has "
            f"{verifier.vocab_size} and {verifier.hidden_size}; give a draft of this verifier."
        )
    flags = {name: fields.optional(name, bool, False) for name in _FLAGS}
    flags["norm_before_fc"] = eagle.optional("norm_before_fc", bool, flags["norm_before_fc"])
    flags["fc_norm"] = flags["fc_norm"] or fields.optional("use_aux_norm", bool, False)
    draft_vocab_size = fields.optional("draft_vocab_size", int, shape["vocab_size"])
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": fields.optional("speculators_version", str, "0.9.0"),
        "speculators_config": _proposals(fields),
        "draft_vocab_size": draft_vocab_size,
        "eagle_aux_hidden_state_layer_ids": _layer_ids(fields, eagle, verifier),
        "embed_requires_grad": False,
        **flags,
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "dtype": fields.values.get("dtype") or fields.values.get("torch_dtype"),
        "transformer_layer_config": shape,
    }


def _layer(layer: Fields, kind: str) -> dict[str, Any]:
    """The decoder layer's fields, each written out; defaults are those of the engines' loaders."""
    layer.only("hidden_act", "silu")
    layer.only("attention_bias", False)
    layer.only("mlp_bias", False)
    layer.only("bias", False)
    layer.only("tie_word_embeddings", False)
    layer.only("use_sliding_window", False)
    if kind not in LAYER_TYPES:
        raise UserError(f"{layer.where} has layers of the type {kind!r}; supported: {', '.join(LAYER_TYPES)}.")
    heads, hidden = layer.take("num_attention_heads", int), layer.take("hidden_size", int)
    sizes = {
        "vocab_size": layer.take("vocab_size", int),
        "hidden_size": hidden,
        "intermediate_size": layer.take("intermediate_size", int),
        "num_hidden_layers": layer.optional("num_hidden_layers", int, 1),
        "num_attention_heads": heads,
        "num_key_value_heads": layer.optional("num_key_value_heads", int, heads),
        "head_dim": layer.optional("head_dim", int, hidden // heads if heads > 0 else 0),
        "max_position_embeddings": layer.take("max_position_embeddings", int),
    }
    if any(value < 1 for value in sizes.values()) or heads % sizes["num_key_value_heads"] or sizes["head_dim"] % 2:
        raise UserError(f"{layer.where} has impossible sizes or head counts; restore the draft's config.json.")
    return {
        "model_type": kind,
        "architectures": ["Qwen3ForCausalLM" if kind == "qwen3" else "LlamaForCausalLM"],
        "rope_parameters": read_rope(layer),
        **sizes,
        "hidden_act": "silu",
        "rms_norm_eps": layer.take("rms_norm_eps", float),
        "attention_bias": False,
        "attention_dropout": 0.0,
        **_ONLY[kind],
        "initializer_range": layer.optional("initializer_range", float, 0.02),
        "tie_word_embeddings": False,
        **{name: layer.values.get(name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")},
    }


def _layer_ids(fields: Fields, eagle: Fields, verifier: Sizes | None) -> list[int]:
    """The auxiliary ids, each the layer that the state ENTERS.

    Under `eagle_config` they are SGLang's, by the layer a state leaves. SGLang itself reads them so for every verifier
    but those of DeepSeek's layers, where it takes a list that does not begin with 1 as it stands (its PR 25454).
    """
    name = "eagle_aux_hidden_state_layer_ids"
    own, theirs = fields.values.get(name), eagle.values.get(name)
    for ids in (own, theirs):
        if ids is not None and not (isinstance(ids, list) and all(type(k) is int for k in ids)):
            raise UserError(f"{fields.where} has {name} = {ids!r}; give a list of whole numbers.")
    translated = _from_sglang(theirs, verifier) if theirs else []
    if own and translated and own != translated:
        raise UserError(
            f"{fields.where} has the auxiliary layers {own}, and under eagle_config {theirs}, which are not the same "
            f"tensors; keep the right one."
        )
    found = own or translated
    if verifier is None:
        return list(found)
    return check_layer_ids(found, verifier.num_layers) if found else default_layer_ids(verifier.num_layers)


def _from_sglang(ids: list[int], verifier: Sizes | None) -> list[int]:
    as_they_stand = verifier is not None and verifier.family == DEEPSEEK and ids[0] != 1
    return [k if as_they_stand else k + 1 for k in ids]


def _proposals(fields: Fields) -> Mapping[str, Any]:
    """speculators_config: the draft's own without the name of its verifier, which may be a private path."""
    own = fields.inside("speculators_config")
    methods = own.values.get("proposal_methods") or [{"proposal_type": "greedy", "speculative_tokens": 3}]
    architectures = own.inside("verifier").values.get("architectures") or ["LlamaForCausalLM"]
    return {
        "algorithm": "eagle3",
        "proposal_methods": methods,
        "default_proposal_method": own.values.get("default_proposal_method") or "greedy",
        "verifier": {"name_or_path": None, "architectures": architectures},
    }
