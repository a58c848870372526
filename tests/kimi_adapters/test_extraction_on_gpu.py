"""The kernels against float64, the transport against plain reading, on an NVIDIA GPU. (The whole forward: test_deepseek.py.)"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kimi_adapters import int4, pinned_reader
from kimi_adapters.layers import swiglu
from kimi_adapters.moe import Router, dispatch, route
from kimi_adapters.tiny_checkpoint import Options, config_values, make
from kimi_adapters.weights import Checkpoint
from tests.kimi_adapters.deepseek_fixtures import ours, shard_of

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


def test_layers_come_whole_through_small_buffers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors are cut over many buffers, and more pieces wait than there are buffers."""
    monkeypatch.setattr(pinned_reader, "BUFFER_BYTES", 10_000)
    monkeypatch.setattr(pinned_reader, "BUFFERS", 3)
    make(tmp_path)
    checkpoint, device = Checkpoint(tmp_path), torch.device("cuda")
    with pinned_reader.PinnedReader(device) as reader:
        pinned = pinned_reader.PinnedCheckpoint(checkpoint, reader)
        for name in checkpoint.names:
            with torch.cuda.stream(reader.stream):
                found = pinned.read(name, None, device)
            reader.stream.synchronize()
            assert torch.equal(found.cpu(), checkpoint.read(name)), name


def test_an_error_of_a_sink_comes_out(tmp_path: Path) -> None:
    from kimi_adapters.layer_stream import stream_states

    make(tmp_path)

    def full(shard: int, name: str, chunk: Tensor) -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        stream_states([shard_of([50], 1280, 0)], Checkpoint(tmp_path), [1], full, device="cuda", compute_dtype=torch.bfloat16)


def test_passes_that_overlap_give_the_same_states(tmp_path: Path) -> None:
    from kimi_adapters.gpu_transport import GpuTransport
    from kimi_adapters.layer_stream import stream_states

    make(tmp_path)
    options = {"device": "cuda", "compute_dtype": torch.bfloat16, "state_dtype": torch.bfloat16}
    shards = [shard_of([100, 30, 400], 1280, seed) for seed in range(6)]
    alone = [ours([shard], tmp_path, [1, 3], **options)[0] for shard in shards]
    checkpoint, device = Checkpoint(tmp_path), torch.device("cuda")
    told: list[int] = []
    found: dict[tuple[int, str], list[Tensor]] = {}
    with GpuTransport(checkpoint, device, held_bytes=100_000) as transport:
        for start in (0, 3):

            def sink(shard: int, name: str, chunk: Tensor, start: int = start) -> None:
                found.setdefault((start + shard, name), []).append(chunk.clone())

            stream_states(shards[start : start + 3], checkpoint, [1, 3], sink, transport=transport, **options)  # type: ignore[arg-type]
            transport.then(lambda start=start: told.append(start))  # type: ignore[misc]
        transport.finish()
    assert told == [0, 3]
    for number, states in enumerate(alone):
        assert all(torch.equal(torch.cat(found[number, name]), states[name]) for name in states)
