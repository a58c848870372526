"""The rotary frequencies of a draft, from what its config.json says (see `rope_parameters`)."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from kimi_adapters import llama_rope, yarn
from kimi_adapters.rope_parameters import SCALINGS, rope_fields


def inverse_frequencies(rope: Mapping[str, Any], head_dim: int) -> tuple[Tensor, float]:
    """(inverse frequencies, float32 [head_dim / 2]; the factor of cos and sin), from what `rope_parameters` gives.

    KeyError: a field of the scaling is missing. The formulas are those of the verifiers' own forwards.
    """
    kind, stretch = rope["rope_type"], 1.0
    # All that those functions ask of a verifier's configuration.
    asked: Any = SimpleNamespace(head_dim=head_dim, qk_rope_head_dim=head_dim, rope_theta=rope["rope_theta"], rope_scaling=None)
    if kind in SCALINGS:
        values = {name: value for name, value in rope_fields(rope).items() if not name.startswith("rope_")}
        asked.rope_scaling = SCALINGS[kind](**values, **({"softmax_factor": 1.0} if kind == "yarn" else {}))
        stretch = getattr(asked.rope_scaling, "attention_factor", 1.0)
    return (yarn.inverse_frequencies(asked) if kind == "yarn" else llama_rope.inverse_frequencies(asked, "cpu")), stretch
