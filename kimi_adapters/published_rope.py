"""A published draft's rotary positions, from either spelling of transformers, as ours are written."""

from typing import Any

from errors import UserError
from kimi_adapters.config_fields import Fields, rope_fields
from kimi_adapters.draft_formats import yarn_mscale

_ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3")


def read_rope(layer: Fields) -> dict[str, Any]:
    """`rope_parameters` in transformers 5's spelling. UserError: a kind that is not known, YaRN without its numbers."""
    rope = rope_fields(layer)
    kind = rope.values.get("rope_type") or rope.values.get("type") or "default"
    if kind not in _ROPE_TYPES:
        raise UserError(f"{layer.where} has the rope_type {kind!r}; supported: {', '.join(_ROPE_TYPES)}.")
    theta = rope.optional("rope_theta", float, 10000.0)
    if kind == "default":
        return {"rope_type": kind, "rope_theta": theta}
    if kind == "yarn":
        return {"rope_type": kind, "rope_theta": theta, **_yarn(rope)}
    kept = {name: value for name, value in rope.values.items() if name not in ("type", "rope_type", "rope_theta")}
    return {"rope_type": kind, "rope_theta": theta, **kept}


def _yarn(rope: Fields) -> dict[str, Any]:
    """YaRN with every number written out; what multiplies cos and sin is `attention_factor`, however it was spelled.

    As transformers' modeling_rope_utils.py has it. SGLang's own attn_factor is read by no other.
    """
    for name in ("attn_factor", "extrapolation_factor"):
        rope.only(name, 1)
    factor = rope.take("factor", float)
    parts = [rope.optional(name, float, 0.0) for name in ("mscale", "mscale_all_dim")]
    ratio = yarn_mscale(factor, parts[0]) / yarn_mscale(factor, parts[1]) if all(parts) else yarn_mscale(factor)
    return {
        "factor": factor,
        "original_max_position_embeddings": rope.take("original_max_position_embeddings", int),
        "beta_fast": rope.optional("beta_fast", float, 32.0),
        "beta_slow": rope.optional("beta_slow", float, 1.0),
        "truncate": rope.optional("truncate", bool, True),
        "attention_factor": rope.optional("attention_factor", float, ratio),
    }
