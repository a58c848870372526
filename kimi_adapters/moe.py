"""A mixture of experts: routing by sigmoid scores with a correction, products by expert, sums in a fixed order.

Nothing here adds atomically: rows are sorted by expert with a stable sort, multiplied expert by expert, and each
token gathers its experts' rows back and adds them in float32, by rising expert.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kimi_adapters.deepseek_config import DeepseekConfig
from kimi_adapters.device_paths import grouped_linear
from kimi_adapters.int4 import unpack
from kimi_adapters.layers import swiglu


@dataclass(frozen=True)
class Experts:
    """gate_up [E, 2 · width, hidden], the gate's rows in front; down [E, hidden, width]."""

    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True)
class PackedExperts:
    """The same in INT4: int32 [E, out, in / 8] with scales [E, out, in / group]."""

    gate_up: Tensor
    gate_up_scale: Tensor
    down: Tensor
    down_scale: Tensor

    def unpack(self, dtype: torch.dtype, together: int) -> Experts:
        """Experts in `dtype`, `together` at a time so that what lies between stays small."""
        parts = ((self.gate_up, self.gate_up_scale), (self.down, self.down_scale))
        return Experts(*(_unpack_all(packed, scale, dtype, together) for packed, scale in parts))


def _unpack_all(packed: Tensor, scale: Tensor, dtype: torch.dtype, together: int) -> Tensor:
    count, rows, words = packed.shape
    out = torch.empty(count, rows, words * 8, dtype=dtype, device=packed.device)
    for start in range(0, count, together):
        group = slice(start, start + together)
        out[group] = unpack(packed[group], scale[group])
    return out


@dataclass(frozen=True)
class Router:
    """weight float32 [E, hidden]; bias float32 [E], which takes part in the choice and not in the weights."""

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class Dispatch:
    """Where rows go: `rows` int64 [t · k], the token of each row once sorted by expert; `ends` the rows up to each
    expert's last; `back` int64 [t, k], the row of a token's j-th expert."""

    rows: Tensor
    ends: list[int]
    back: Tensor


def route(x: Tensor, router: Router, config: DeepseekConfig) -> tuple[Tensor, Tensor]:
    """Each token's experts, int64 [t, k] rising, and their weights, float32 [t, k]; all in float32.

    The choice is by sigmoid score plus correction (among the best groups, where there are groups), the weights are
    the scores without it: https://arxiv.org/abs/2412.19437, section 2.1.2.
    """
    scores = (x.float() @ router.weight.t()).sigmoid()
    choice = _within_best_groups(scores + router.bias, config)
    chosen = choice.topk(config.experts_per_token, dim=-1).indices.sort(dim=-1).values
    weights = scores.gather(1, chosen)
    if config.norm_topk_prob:
        weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
    return chosen, weights * config.routed_scaling_factor


def _within_best_groups(scores: Tensor, config: DeepseekConfig) -> Tensor:
    """Scores [t, E], those outside a token's best groups (by the sum of their two best experts) at minus infinity."""
    if config.expert_groups == config.groups_per_token:
        return scores
    grouped = scores.unflatten(-1, (config.expert_groups, -1))
    best = grouped.topk(2, dim=-1).values.sum(dim=-1).topk(config.groups_per_token, dim=-1).indices
    outside = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter_(1, best, False)
    return grouped.masked_fill(outside[..., None], -torch.inf).flatten(1)


def dispatch(chosen: Tensor, num_experts: int) -> Dispatch:
    """The sorting of tokens by expert, from each token's experts [t, k]."""
    flat = chosen.flatten()
    by_expert, order = flat.sort(stable=True)
    ends = torch.searchsorted(by_expert, torch.arange(num_experts, device=flat.device), right=True)
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=flat.device)
    return Dispatch(order // chosen.shape[1], ends.tolist(), back.view_as(chosen))


def routed_sum(x: Tensor, experts: Experts, plan: Dispatch, weights: Tensor, together: int) -> Tensor:
    """The weighted sum of each token's experts, float32 [t, hidden], of x [t, hidden]; `together` experts at a time."""
    outputs = x.new_empty(len(plan.rows), x.shape[1])
    first = 0
    for start in range(0, len(plan.ends), together):
        ends = plan.ends[start : start + together]
        here, last = slice(start, start + together), ends[-1]
        if last > first:
            bounds = [end - first for end in ends]
            inner = swiglu(grouped_linear(x[plan.rows[first:last]], experts.gate_up[here], bounds))
            outputs[first:last] = grouped_linear(inner, experts.down[here], bounds)
        first = last
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for rows, share in zip(plan.back.unbind(1), weights.unbind(1), strict=True):
        total += outputs[rows].float() * share[:, None]
    return total
