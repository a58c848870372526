"""Routing, sorting and summing of experts against the plain definition, over any routing."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

from kimi_adapters.config import parse_config
from kimi_adapters.deepseek_config import DeepseekConfig
from kimi_adapters.device_paths import grouped_linear
from kimi_adapters.moe import Experts, Router, dispatch, route, routed_sum
from kimi_adapters.tiny_config import Options, config_values

HIDDEN, WIDTH = 8, 4


def tiny(options: Options = Options()) -> DeepseekConfig:  # noqa: B008 - frozen
    config = parse_config(config_values(options), "config.json")
    assert isinstance(config, DeepseekConfig)
    return config


@st.composite
def routings(draw: st.DrawFn) -> tuple[int, list[list[int]]]:
    """A number of experts, and each token's different ones, rising; often the same few for all tokens."""
    count = draw(st.integers(2, 12))
    k = draw(st.integers(1, min(4, count)))
    liked = draw(st.lists(st.integers(0, count - 1), min_size=k, max_size=count, unique=True))
    token = st.permutations(liked).map(lambda order: sorted(order[:k]))
    return count, draw(st.lists(token, min_size=1, max_size=40))


def plainly(x: Tensor, experts: Experts, chosen: Tensor, weights: Tensor) -> Tensor:
    """Token by token, in float64."""
    total = torch.zeros(x.shape, dtype=torch.float64)
    for t, (row, shares) in enumerate(zip(chosen.tolist(), weights.double(), strict=True)):
        for expert, share in zip(row, shares, strict=True):
            gate, up = (experts.gate_up[expert].double() @ x[t].double()).chunk(2)
            total[t] += share * (experts.down[expert].double() @ (torch.nn.functional.silu(gate) * up))
    return total


@settings(max_examples=60, deadline=None)
@given(routings(), st.integers(1, 13))
def test_the_sum_is_the_plain_one_for_any_routing(routing: tuple[int, list[list[int]]], together: int) -> None:
    count, rows = routing
    random = torch.Generator().manual_seed(len(rows))
    chosen = torch.tensor(rows)
    x, weights = torch.randn(len(rows), HIDDEN, generator=random), torch.rand(chosen.shape, generator=random)
    experts = Experts(
        torch.randn(count, 2 * WIDTH, HIDDEN, generator=random), torch.randn(count, HIDDEN, WIDTH, generator=random)
    )
    plan = dispatch(chosen, count)
    assert plan.ends == [sum(e <= expert for row in rows for e in row) for expert in range(count)]
    assert torch.equal(plan.rows[plan.back], torch.arange(len(rows))[:, None].expand_as(chosen))
    total = routed_sum(x, experts, plan, weights, together)
    assert total.dtype == torch.float32
    assert torch.allclose(total.double(), plainly(x, experts, chosen, weights), atol=1e-4)


def test_grouped_products_are_called_as_torch_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of GPUs, through torch's own stand-in for it on a CPU: experts without rows at either end and between."""
    x, weight = torch.randn(50, 64).bfloat16(), torch.randn(6, 32, 64).bfloat16()
    ends = [0, 10, 10, 35, 50, 50]
    looped = grouped_linear(x, weight, ends)
    monkeypatch.setattr("kimi_adapters.device_paths._has_grouped_products", lambda x: True)
    assert torch.allclose(grouped_linear(x, weight, ends).float(), looped.float(), rtol=0.02, atol=0.1)


@pytest.mark.parametrize("layout", ["kimi_k25", "deepseek_v3"])
@pytest.mark.parametrize("norm", [True, False])
def test_routing_equals_transformers(layout: str, norm: bool) -> None:
    """With groups of experts (DeepSeek-V3) and without (Kimi); the correction changes the choice, not the weights."""
    options = Options(layout=layout)  # type: ignore[arg-type]
    config = replace(tiny(options), norm_topk_prob=norm)
    values = config_values(options)
    text = {
        name: value
        for name, value in values.get("text_config", values).items()
        if name not in ("model_type", "quantization_config")
    }
    theirs = DeepseekV3TopkRouter(DeepseekV3Config(**{**text, "norm_topk_prob": norm}))
    random = torch.Generator().manual_seed(3)
    theirs.weight.data = torch.randn(config.num_experts, config.hidden_size, generator=random)
    theirs.e_score_correction_bias = 0.3 * torch.randn(config.num_experts, generator=random)
    x = 0.1 * torch.randn(500, config.hidden_size, generator=random)
    with torch.no_grad():
        _, their_weights, their_choice = theirs(x)
        chosen, weights = route(x, Router(theirs.weight.data, theirs.e_score_correction_bias), config)
        plain, _ = route(x, Router(theirs.weight.data, torch.zeros(config.num_experts)), config)
    order = their_choice.sort(dim=-1)
    assert torch.equal(chosen, order.values)
    assert torch.allclose(weights, their_weights.gather(1, order.indices), atol=1e-6)
    assert not torch.equal(chosen, plain)
