"""A verifier's numeric configuration, read from its config.json by us, so that no library's change moves a key."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from errors import UserError

FAMILIES = ("llama",)
Value = TypeVar("Value", int, float, bool, str)


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1's stretching of the rotary frequencies (rope_type "llama3")."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class TextConfig:
    """The text model of a verifier. Sizes are counts; `rope_scaling` None means plain rotary positions."""

    family: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Llama3Scaling | None
    tie_word_embeddings: bool
    max_position_embeddings: int
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    pad_token_id: int | None
    attention_bias: bool
    mlp_bias: bool


# Hidden states depend on these and on the weights; token ids, lengths and the language-model head do not enter.
NUMERIC_FIELDS = (
    "family", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "intermediate_size",
    "rms_norm_eps", "rope_theta", "rope_scaling", "attention_bias", "mlp_bias",
)  # fmt: skip


def numeric_identity(config: TextConfig) -> dict[str, Any]:
    """The JSON values that hidden states depend on beside the weights: no name, no path, no token id."""
    values = asdict(config)
    return {name: values[name] for name in NUMERIC_FIELDS}


def read_config(directory: str | os.PathLike[str]) -> TextConfig:
    """Reads `directory`/config.json; a `text_config` inside it is taken, as multimodal checkpoints have it.

    UserError: no such directory or file, a family that is not supported, a missing or impossible field.
    """
    path = Path(directory) / "config.json"
    try:
        with open(path, encoding="utf-8") as file:
            values = json.load(file)
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); give a verifier directory in Hugging Face's layout."
        ) from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}); restore the verifier's config.json.") from error
    if not isinstance(values, dict):
        raise UserError(f"{path} is not a JSON object; restore the verifier's config.json.")
    return parse_config(values, str(path))


def parse_config(values: dict[str, Any], where: str) -> TextConfig:
    """A TextConfig from config.json's values; `where` names their file in errors."""
    fields = _Fields(values.get("text_config") or values, where)
    family = fields.take("model_type", str)
    if family not in FAMILIES:
        raise UserError(f"{where} is of the family {family!r}; supported: {', '.join(FAMILIES)}.")
    if fields.optional("hidden_act", str, "silu") != "silu":
        raise UserError(f"{where} has another hidden_act than silu, which no supported family uses.")
    rope = _rope(fields)
    num_heads, hidden_size = fields.take("num_attention_heads", int), fields.take("hidden_size", int)
    config = TextConfig(
        family=family,
        hidden_size=hidden_size,
        num_layers=fields.take("num_hidden_layers", int),
        num_heads=num_heads,
        num_kv_heads=fields.optional("num_key_value_heads", int, num_heads),
        head_dim=fields.optional("head_dim", int, hidden_size // num_heads),
        intermediate_size=fields.take("intermediate_size", int),
        vocab_size=fields.take("vocab_size", int),
        rms_norm_eps=fields.take("rms_norm_eps", float),
        rope_theta=rope.take("rope_theta", float),
        rope_scaling=_rope_scaling(rope),
        tie_word_embeddings=fields.optional("tie_word_embeddings", bool, False),
        max_position_embeddings=fields.take("max_position_embeddings", int),
        eos_token_ids=_token_ids(fields.values.get("eos_token_id")),
        bos_token_id=fields.values.get("bos_token_id"),
        pad_token_id=fields.values.get("pad_token_id"),
        attention_bias=fields.optional("attention_bias", bool, False),
        mlp_bias=fields.optional("mlp_bias", bool, False),
    )
    if config.num_heads % config.num_kv_heads or config.head_dim % 2 or config.num_layers < 1:
        raise UserError(f"{where} has impossible head or layer counts; restore the verifier's config.json.")
    return config


def _rope(fields: "_Fields") -> "_Fields":
    """Rotary settings under transformers 5's `rope_parameters` or transformers 4's `rope_theta` + `rope_scaling`."""
    theta = {"rope_theta": fields.values.get("rope_theta")}
    nested = fields.values.get("rope_parameters") or fields.values.get("rope_scaling") or {}
    return _Fields({**theta, **nested}, fields.where)


def _rope_scaling(rope: "_Fields") -> Llama3Scaling | None:
    kind = rope.values.get("rope_type") or rope.values.get("type") or "default"
    if kind == "default":
        return None
    if kind != "llama3":
        raise UserError(f"{rope.where} has the rope_type {kind!r}; supported: default, llama3.")
    return Llama3Scaling(
        factor=rope.take("factor", float),
        low_freq_factor=rope.take("low_freq_factor", float),
        high_freq_factor=rope.take("high_freq_factor", float),
        original_max_position_embeddings=rope.take("original_max_position_embeddings", int),
    )


def _token_ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)


class _Fields:
    """Typed look-ups whose errors name the file and the field."""

    def __init__(self, values: dict[str, Any], where: str):
        self.values = values
        self.where = where

    def take(self, name: str, kind: type[Value]) -> Value:
        value = self.values.get(name)
        if value is None:
            raise UserError(f"{self.where} has no {name!r}; restore the verifier's config.json.")
        accepted = (int, float) if kind is float else kind
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            raise UserError(f"{self.where} has {name!r} = {value!r}, which is no {kind.__name__}.")
        return kind(value)

    def optional(self, name: str, kind: type[Value], default: Value) -> Value:
        return default if self.values.get(name) is None else self.take(name, kind)
