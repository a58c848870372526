"""Each kernel against float64 on fresh random inputs, into poisoned outputs, the same bits twice; on an NVIDIA GPU."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kimi_adapters import int4
from kimi_adapters.layers import swiglu
from kimi_adapters.moe import Router, dispatch, route
from kimi_adapters.tiny_config import Options, config_values

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")]
WIDTHS = [(96, 40), (7168, 384)]
BF16_ROUNDING = 2.0**-8


@pytest.fixture
def random() -> torch.Generator:
    """Fresh inputs at every run; a failure says its seed."""
    generator = torch.Generator("cuda")
    print("seed", generator.seed())
    return generator


def normal(random: torch.Generator, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, generator=random, device="cuda").to(dtype)


def poisoned(*shape: int) -> Tensor:
    return torch.full(shape, float("nan"), dtype=torch.bfloat16, device="cuda")


def same_twice(compute: Callable[[], Tensor]) -> Tensor:
    first, second = compute(), compute()
    assert torch.equal(first, second)
    return first


def assert_rounded_once(found: Tensor, exact: Tensor) -> None:
    """Every element is the exact value rounded to bf16, or its neighbour where float32 sums decide a tie."""
    assert ((found.double() - exact).abs() <= 1.01 * BF16_ROUNDING * exact.abs() + 1e-5 * exact.abs().max()).all()


@pytest.mark.parametrize("shape", [(3, 5, 16, 8), (7, 256, 896, 32)])
def test_unpacking_gives_the_bits_of_the_plain_way(random: torch.Generator, shape: tuple[int, int, int, int]) -> None:
    count, rows, words, group = shape
    packed = torch.randint(-(2**31), 2**31, (count, rows, words), generator=random, device="cuda", dtype=torch.int32)
    scale = (0.01 * torch.rand(count, rows, words * 8 // group, generator=random, device="cuda")).bfloat16()
    from kimi_adapters.moe_kernels import unpack_int4

    out = same_twice(lambda: unpack_int4(packed, scale, poisoned(count, rows, words * 8)))
    assert torch.equal(out, int4.unpack(packed, scale))


@pytest.mark.parametrize("experts", [16, 40, 384])
def test_the_choice_of_experts(random: torch.Generator, experts: int) -> None:
    from kimi_adapters.config_fields import Fields
    from kimi_adapters.deepseek_config import DeepseekConfig, parse_deepseek
    from kimi_adapters.moe_kernels import choose_experts

    text = config_values(Options())["text_config"]
    config = parse_deepseek(Fields({**text, "n_routed_experts": experts, "num_experts_per_tok": 8}, "here"))
    assert isinstance(config, DeepseekConfig)
    logits = normal(random, 1001, experts, dtype=torch.float32)
    bias = 0.1 * normal(random, experts, dtype=torch.float32)
    identity = Router(torch.eye(experts, device="cuda"), bias)
    chosen, weights = choose_experts(logits, bias, 8, config.routed_scaling_factor, True)
    torch.backends.cuda.matmul.allow_tf32 = False
    expected, shares = route(logits, identity, config)
    differ = (chosen.long() != expected).any(1)  # a tie within float32's rounding of the sigmoid
    assert differ.sum() <= 1
    torch.testing.assert_close(weights[~differ], shares[~differ], rtol=1e-5, atol=1e-6)
    assert (chosen.long().diff(dim=1) > 0).all()


@pytest.mark.parametrize(("width", "experts"), WIDTHS)
def test_rows_go_to_their_experts_and_back(random: torch.Generator, width: int, experts: int) -> None:
    from kimi_adapters.moe_kernels import combine_rows, sort_by_expert, spread_rows

    tokens, k = 777, 8
    x, shared, stream = (normal(random, tokens, width) for _ in range(3))
    chosen = torch.rand(tokens, experts, generator=random, device="cuda").topk(k).indices.sort().values
    back, ends = sort_by_expert(chosen.to(torch.int16), experts)
    plan = dispatch(chosen, experts)
    assert ends.tolist() == plan.ends and torch.equal(back.long(), plan.back)
    rows = same_twice(lambda: spread_rows(x, back, poisoned(tokens * k, width)))
    assert torch.equal(rows, x[plan.rows])

    outputs = normal(random, tokens * k, width)
    weights = torch.rand(tokens, k, generator=random, device="cuda")
    exact = (outputs.double()[plan.back] * weights.double()[..., None]).sum(1) + shared.double() + stream.double()

    def combined() -> Tensor:
        result = stream.clone()
        combine_rows(result, shared, outputs, back, weights)
        return result

    assert_rounded_once(same_twice(combined), exact)


@pytest.mark.parametrize("width", [24, 2048, 18432])
def test_swiglu_of_rows(random: torch.Generator, width: int) -> None:
    from kimi_adapters.moe_kernels import swiglu_rows

    gate_up = normal(random, 55, 2 * width)
    assert_rounded_once(same_twice(lambda: swiglu_rows(gate_up)), swiglu(gate_up.double()))


@pytest.mark.parametrize(("experts", "width", "depth"), [(5, 256, 64), (48, 512, 7168)])
def test_grouped_products(random: torch.Generator, experts: int, width: int, depth: int) -> None:
    """Experts without rows, with one, with many; a row's bits do not depend on the rows beside it."""
    from kimi_adapters.grouped_kernels import HALF, grouped_product, grouped_swiglu

    counts = torch.randint(0, 400, (experts,), generator=random, device="cuda")
    counts[1], counts[2] = 0, 1
    ends = counts.cumsum(0).to(torch.int32)
    x = normal(random, int(ends[-1]), depth)
    weight = (normal(random, experts, width, depth).float() / depth**0.5).bfloat16()
    of_row = torch.repeat_interleave(torch.arange(experts, device="cuda"), counts)
    exact = torch.empty(len(x), width, dtype=torch.float64, device="cuda")
    for expert in range(experts):
        exact[of_row == expert] = x[of_row == expert].double() @ weight[expert].double().t()
    assert_rounded_once(same_twice(lambda: grouped_product(x, weight, ends)), exact)

    paired = weight.unflatten(1, (2, -1, HALF)).transpose(1, 2).flatten(1, 3).contiguous()
    found = same_twice(lambda: grouped_swiglu(x, paired, ends))
    assert_rounded_once(found, swiglu(exact))

    kept = torch.rand(len(x), generator=random, device="cuda") < 0.5
    fewer = torch.zeros(experts, dtype=torch.int64, device="cuda").index_add(0, of_row[kept], torch.ones_like(of_row[kept]))
    alone = grouped_swiglu(x[kept], paired, fewer.cumsum(0).to(torch.int32))
    assert torch.equal(alone, found[kept])


def test_unpacking_in_pairs(random: torch.Generator) -> None:
    from kimi_adapters.moe_kernels import unpack_int4

    packed = torch.randint(-(2**31), 2**31, (3, 512, 24), generator=random, device="cuda", dtype=torch.int32)
    scale = torch.rand(3, 512, 6, generator=random, device="cuda").bfloat16()
    plain = int4.unpack(packed, scale)
    out = unpack_int4(packed, scale, poisoned(3, 512, 192), 128)
    assert torch.equal(out, plain.unflatten(1, (2, 2, 128)).transpose(1, 2).flatten(1, 3))


@pytest.mark.parametrize("width", [60, 512, 1536, 7168])
def test_rms_norm_of_rows_in_a_slice(random: torch.Generator, width: int) -> None:
    from kimi_adapters.layers import rms_norm
    from kimi_adapters.mla_kernels import rms_norm_rows

    x, gain = normal(random, 33, width + 40)[:, 8 : 8 + width], normal(random, width)
    found = same_twice(lambda: rms_norm_rows(x, gain, 1e-5))
    exact = gain.double() * x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-5)
    plain = rms_norm(x, gain, 1e-5)
    assert (found.double() - exact).norm() <= 1.01 * (plain.double() - exact).norm()


@pytest.mark.parametrize(("heads", "nope", "pairs", "value"), [(3, 12, 4, 10), (64, 128, 32, 128)])
def test_positions_are_placed_in_queries_and_keys(
    random: torch.Generator, heads: int, nope: int, pairs: int, value: int
) -> None:
    from kimi_adapters.mla_kernels import place_positions
    from kimi_adapters.yarn import rotate_pairs

    tokens = 37
    q, kv = normal(random, tokens, heads, nope + 2 * pairs), normal(random, tokens, heads, nope + value)
    key = normal(random, tokens, 2 * pairs + 10)[:, 10:]
    cos, sin = (normal(random, tokens, 1, pairs, dtype=torch.float32) for _ in range(2))
    k, turned = poisoned(*q.shape), q.clone()
    place_positions(turned, kv, key, k, cos, sin)

    def neighbours(x: Tensor) -> Tensor:
        return torch.stack(x.chunk(2, dim=-1), dim=-1).flatten(-2)

    exact = neighbours(rotate_pairs(q[..., nope:].double(), cos.double(), sin.double()))
    assert torch.equal(turned[..., :nope], q[..., :nope]) and torch.equal(k[..., :nope], kv[..., :nope])
    assert_rounded_once(turned[..., nope:], exact)
    exact = neighbours(rotate_pairs(key[:, None].double(), cos.double(), sin.double()))
    assert_rounded_once(k[..., nope:], exact.expand(-1, heads, -1))


def test_attention_in_buckets_is_that_of_each_sample(random: torch.Generator) -> None:
    """What a bucket reads past its sample changes no row of it."""
    from kimi_adapters.deepseek_fused import bucket
    from kimi_adapters.device_paths import causal_attention

    for length in (1, 63, 64, 65, 777, 1030):
        size = bucket(length)
        assert length <= size <= max(64, 1.125 * length + 64)
        q, k = normal(random, size, 4, 192), normal(random, size, 4, 192)
        v = normal(random, size, 4, 256)[..., 128:]
        found = same_twice(lambda q=q, k=k, v=v: causal_attention(q, k, v, 0.1))[:length]  # type: ignore[misc]
        score = torch.einsum("qhd,khd->hqk", q.double(), k.double())[:, :length, :length] * 0.1
        score = score.masked_fill(torch.ones(length, length, dtype=torch.bool, device="cuda").triu(1), -torch.inf)
        exact = torch.einsum("hqk,khd->qhd", score.softmax(-1), v.double()[:length])
        assert (found.double() - exact).norm() <= 5e-3 * exact.norm()
