"""What the configurations of all families share, and look-ups whose errors name the file and the field."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, ClassVar, TypeVar

from errors import UserError

Value = TypeVar("Value", int, float, bool, str)


@dataclass(frozen=True)
class TextConfig:
    """The text model of a verifier as every consumer sees it; a family's own class adds what its forward needs.

    Sizes are counts. `num_heads` · `head_dim` is the width that the attention's output projection takes: what a
    draft's heads are made after.
    """

    NUMERIC_FIELDS: ClassVar[tuple[str, ...]] = ()

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
    tie_word_embeddings: bool
    max_position_embeddings: int
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    pad_token_id: int | None


def numeric_identity(config: TextConfig) -> dict[str, Any]:
    """The JSON values that hidden states depend on beside the weights: no name, no path, no token id, no length."""
    values = {name: getattr(config, name) for name in type(config).NUMERIC_FIELDS}
    return {name: asdict(value) if is_dataclass(value) else value for name, value in values.items()}  # type: ignore[arg-type]


class Fields:
    """Typed look-ups in a JSON object whose errors name the file and the field."""

    def __init__(self, values: Mapping[str, Any], where: str):
        self.values = values
        self.where = where

    def take(self, name: str, kind: type[Value]) -> Value:
        """The value; UserError when it is missing or of another type."""
        value = self.values.get(name)
        if value is None:
            raise UserError(f"{self.where} has no {name!r}; restore the verifier's config.json.")
        accepted = (int, float) if kind is float else kind
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            raise UserError(f"{self.where} has {name!r} = {value!r}, which is no {kind.__name__}.")
        return kind(value)

    def optional(self, name: str, kind: type[Value], default: Value) -> Value:
        """The value, `default` where it is missing or null."""
        return default if self.values.get(name) is None else self.take(name, kind)

    def only(self, name: str, supported: Value) -> None:
        """UserError when the value is given and is not the one that our forward computes."""
        value = self.values.get(name)
        if value is not None and value != supported:
            raise UserError(f"{self.where} has {name!r} = {value!r}; supported: {supported!r}.")

    def inside(self, name: str) -> "Fields":
        """The look-ups of a nested object, an empty one where it is missing."""
        value = self.values.get(name) or {}
        if not isinstance(value, Mapping):
            raise UserError(f"{self.where} has {name!r} = {value!r}, which is no JSON object.")
        return Fields(value, self.where)


def shared_values(fields: Fields) -> dict[str, Any]:
    """The arguments of TextConfig that every family reads alike; `head_dim` and `num_kv_heads` are the family's."""
    fields.only("hidden_act", "silu")
    values: dict[str, Any] = {
        "hidden_size": fields.take("hidden_size", int),
        "num_layers": fields.take("num_hidden_layers", int),
        "num_heads": fields.take("num_attention_heads", int),
        "intermediate_size": fields.take("intermediate_size", int),
        "vocab_size": fields.take("vocab_size", int),
        "rms_norm_eps": fields.take("rms_norm_eps", float),
        "rope_theta": rope_fields(fields).take("rope_theta", float),
        "tie_word_embeddings": fields.optional("tie_word_embeddings", bool, False),
        "max_position_embeddings": fields.take("max_position_embeddings", int),
        "eos_token_ids": _token_ids(fields.values.get("eos_token_id")),
        "bos_token_id": fields.values.get("bos_token_id"),
        "pad_token_id": fields.values.get("pad_token_id"),
    }
    counts = ("hidden_size", "num_layers", "num_heads", "intermediate_size", "vocab_size")
    if any(values[name] < 1 for name in counts):
        raise UserError(f"{fields.where} has sizes below 1; restore the verifier's config.json.")
    return values


def rope_fields(fields: Fields) -> Fields:
    """Rotary settings under transformers 5's `rope_parameters` or transformers 4's `rope_theta` + `rope_scaling`."""
    nested = fields.inside("rope_parameters" if fields.values.get("rope_parameters") else "rope_scaling")
    return Fields({"rope_theta": fields.values.get("rope_theta"), **nested.values}, fields.where)


def rope_kind(rope: Fields, *supported: str) -> str:
    """The rope_type; UserError unless it is "default" or one of `supported`."""
    kind = rope.values.get("rope_type") or rope.values.get("type") or "default"
    if kind not in ("default", *supported):
        raise UserError(f"{rope.where} has the rope_type {kind!r}; supported: {', '.join(('default', *supported))}.")
    return str(kind)


def _token_ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)
