"""What a draft's config.json says of its rotary positions: plain, or stretched as the verifier's where the recipe asks for it.

A stretch is off by default because engines disagree on what YaRN multiplies beside the frequencies. With it cos and sin are
multiplied by `attention_factor` as transformers does for a Llama; a verifier's own softmax factor has no part in it.
"""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from kimi_adapters.config_fields import TextConfig
from kimi_adapters.deepseek_config import YarnScaling
from kimi_adapters.llama_config import Llama3Scaling

SCALINGS: dict[str, type] = {"yarn": YarnScaling, "llama3": Llama3Scaling}
ROPE_TYPES = ("default", *SCALINGS)
_NOT_THE_DRAFTS = ("softmax_factor",)


def rope_parameters(verifier: TextConfig, theta: float, stretched: bool) -> dict[str, Any]:
    """What config.json says: the base, and with `stretched` the verifier's scaling, where it has one."""
    scaling = getattr(verifier, "rope_scaling", None) if stretched else None
    kind = next((name for name, of in SCALINGS.items() if isinstance(scaling, of)), "default")
    values = {} if scaling is None else {name: value for name, value in asdict(scaling).items() if name not in _NOT_THE_DRAFTS}
    return {"rope_type": kind, "rope_theta": theta, **values}


def rope_fields(rope: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `rope_parameters` alone, of a configuration that may hold others."""
    scaling = SCALINGS.get(rope["rope_type"])
    names = [field.name for field in fields(scaling) if field.name not in _NOT_THE_DRAFTS] if scaling else []
    return {name: rope[name] for name in ("rope_type", "rope_theta", *names)}
