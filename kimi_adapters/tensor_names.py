"""What a checkpoint's tensors are by their names: which are the text model's, and in which role."""

import math
import re
from collections.abc import Sequence

from kimi_adapters.quantization import PER_WORD

ROLES = ("embed", "norm", "lm_head", "layer")

# The text model sits under "model.", under "language_model.model." (Kimi-K2.5) or under "model.language_model.";
# the towers for other media have names that these components do not lead to.
_TEXT_TENSOR = re.compile(
    r"^(?:(?:model|language_model)\.)*"
    r"(?P<name>embed_tokens\.weight|norm\.weight|lm_head\.weight|layers\.(?P<layer>\d+)\.(?P<part>.+))$"
)
_ROLE_BY_NAME = {"embed_tokens.weight": "embed", "norm.weight": "norm", "lm_head.weight": "lm_head"}


def canonical_name(tensor_name: str) -> str | None:
    """The name without the text model's prefix ("layers.3.mlp.up_proj.weight"); None when it is no text tensor."""
    match = _TEXT_TENSOR.match(tensor_name)
    if match is None or (match["part"] or "").endswith("rotary_emb.inv_freq"):
        return None
    return match["name"]


def role_of(tensor_name: str) -> str | None:
    """One of ROLES, or None for what the text model does not use."""
    name = canonical_name(tensor_name)
    return None if name is None else _ROLE_BY_NAME.get(name, "layer")


def layer_of(name: str) -> int | None:
    """The layer that a canonical name belongs to; None for embeddings, norm and head."""
    return int(name.split(".", 2)[1]) if name.startswith("layers.") else None


def part_of(tensor_name: str) -> str:
    """What a tensor that is not the text model's belongs to: a tower, or a layer past the last."""
    name = canonical_name(tensor_name)
    return tensor_name.split(".", 1)[0] if name is None else ".".join(name.split(".", 2)[:2])


def parameter_count(name: str, shape: Sequence[int]) -> int:
    """How many parameters a stored tensor stands for: a packed one for eight a word, its scales and shape for none."""
    part = name.rpartition(".")[2]
    if part in ("weight_scale", "weight_shape"):
        return 0
    return math.prod(shape) * (PER_WORD if part == "weight_packed" else 1)
