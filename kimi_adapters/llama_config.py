"""What a Llama's config.json says beyond the shared fields."""

from dataclasses import dataclass
from typing import ClassVar

from errors import UserError
from kimi_adapters.config_fields import Fields, TextConfig, rope_fields, rope_kind, shared_values

FAMILY = "llama"


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1's stretching of the rotary frequencies (rope_type "llama3")."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class LlamaConfig(TextConfig):
    """A Llama; `rope_scaling` None means plain rotary positions."""

    # Hidden states depend on these and on the weights; token ids, lengths and the language-model head do not enter.
    NUMERIC_FIELDS: ClassVar[tuple[str, ...]] = (
        "family", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "intermediate_size",
        "rms_norm_eps", "rope_theta", "rope_scaling", "attention_bias", "mlp_bias",
    )  # fmt: skip

    rope_scaling: Llama3Scaling | None
    attention_bias: bool
    mlp_bias: bool


def parse_llama(fields: Fields) -> LlamaConfig:
    """A Llama's configuration. UserError: a missing or impossible field, quantized weights."""
    if fields.values.get("quantization_config"):
        raise UserError(f"{fields.where} has a quantization_config, which is not read for a Llama; give unquantized weights.")
    shared = shared_values(fields)
    config = LlamaConfig(
        family=FAMILY,
        **shared,
        num_kv_heads=fields.optional("num_key_value_heads", int, shared["num_heads"]),
        head_dim=fields.optional("head_dim", int, shared["hidden_size"] // shared["num_heads"]),
        rope_scaling=_rope_scaling(rope_fields(fields)),
        attention_bias=fields.optional("attention_bias", bool, False),
        mlp_bias=fields.optional("mlp_bias", bool, False),
    )
    if config.num_kv_heads < 1 or config.num_heads % config.num_kv_heads or config.head_dim % 2:
        raise UserError(f"{fields.where} has impossible head or layer counts; restore the verifier's config.json.")
    return config


def _rope_scaling(rope: Fields) -> Llama3Scaling | None:
    if rope_kind(rope, "llama3") == "default":
        return None
    return Llama3Scaling(
        factor=rope.take("factor", float),
        low_freq_factor=rope.take("low_freq_factor", float),
        high_freq_factor=rope.take("high_freq_factor", float),
        original_max_position_embeddings=rope.take("original_max_position_embeddings", int),
    )
