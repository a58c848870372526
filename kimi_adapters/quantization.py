"""What a checkpoint says of its quantization: compressed-tensors' INT4 groups, the form Kimi-K2.5 is published in.

Names only; the unpacking is int4.py's.
"""

import re
from dataclasses import dataclass
from typing import Any

from errors import UserError
from kimi_adapters.config_fields import Fields

FORMAT = "pack-quantized"
BITS = 4
PER_WORD = 8  # values of 4 bits in an int32
_NOT_READ = ("kv_cache_scheme", "sparsity_config", "transform_config")


@dataclass(frozen=True)
class Int4Groups:
    """Symmetric INT4 with a scale for each `group_size` neighbours of a row.

    `targets` and `ignore` are compressed-tensors' lists: "Linear", a module's name, or "re:" and a pattern that
    matches from the start of the name.
    """

    group_size: int
    targets: tuple[str, ...]
    ignore: tuple[str, ...]

    def covers(self, module: str) -> bool:
        """Whether the Linear of that name ("model.layers.3.mlp.experts.0.up_proj") is stored packed."""
        targeted = "Linear" in self.targets or any(_matches(module, pattern) for pattern in self.targets)
        return targeted and not any(_matches(module, pattern) for pattern in self.ignore)


def parse_quantization(values: dict[str, Any] | None, where: str) -> Int4Groups | None:
    """Int4Groups from `quantization_config`; None without one.

    UserError: any other method, format, width, grouping or ordering, or more than one group of settings.
    """
    if not values:
        return None
    fields = Fields(values, where)
    _need(fields, "quant_method", "compressed-tensors")
    _need(fields, "format", FORMAT)
    groups = list(fields.inside("config_groups").values.values())
    if len(groups) != 1 or any(fields.values.get(other) for other in _NOT_READ):
        raise UserError(f"{where} has a quantization of several parts; supported: one config group, weights alone.")
    group = Fields(groups[0], where)
    if group.values.get("input_activations") or group.values.get("output_activations"):
        raise UserError(f"{where} quantizes activations; supported: weights alone.")
    weights = group.inside("weights")
    _need(weights, "num_bits", BITS)
    _need(weights, "type", "int")
    _need(weights, "symmetric", True)
    _need(weights, "strategy", "group")
    if weights.values.get("dynamic") or weights.values.get("actorder") not in (None, False, "static", "weight"):
        raise UserError(f"{where} quantizes weights dynamically or in activation order; supported: fixed groups in order.")
    group_size = weights.take("group_size", int)
    if group_size < 1 or group_size % PER_WORD:
        raise UserError(f"{where} has quantization groups of {group_size}; supported: multiples of {PER_WORD}.")
    return Int4Groups(group_size, _names(group, "targets"), _names(fields, "ignore"))


def _need(fields: Fields, name: str, supported: str | int | bool) -> None:
    value = fields.values.get(name)
    if value != supported:
        raise UserError(
            f"{fields.where} has a quantization with {name} = {value!r}; supported: {supported!r}, as Kimi-K2.5 is published."
        )


def _names(fields: Fields, name: str) -> tuple[str, ...]:
    value = fields.values.get(name) or []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UserError(f"{fields.where} has {name!r} = {value!r} in its quantization, which is no list of names.")
    return tuple(value)


def _matches(module: str, pattern: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), module) is not None
    return module == pattern or module.endswith(f".{pattern}")
