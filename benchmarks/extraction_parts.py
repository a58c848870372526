"""The parts of one K2.5 layer on one GPU, each beside its floor: `python -m benchmarks.extraction_parts [--tokens 131072]`.

A figure is the median of the repeats after a warm-up, by events. Floors: operations over the ceiling measured in this
run, bytes over the device's copy rate measured in this run.
"""

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.kimi_widths import config, products, random_tensor, sample_lengths, scores, shard
from kimi_adapters import mla
from kimi_adapters.deepseek import Block, Layer
from kimi_adapters.deepseek_fused import FusedDeepseek, bucket
from kimi_adapters.deepseek_layout import expert_linears, layer_tensors
from kimi_adapters.device_paths import causal_attention, sizes
from kimi_adapters.lanes import Lane, positions, sample_bounds
from kimi_adapters.mla_kernels import place_positions, rms_norm_rows
from kimi_adapters.moe import PackedExperts, Router
from kimi_adapters.moe_kernels import choose_experts, combine_rows, sort_by_expert, spread_rows, swiglu_rows

DEVICE = torch.device("cuda")


def seconds(work: Callable[[], Any], repeats: int = 5) -> float:
    """Median time of one call on the device."""
    work()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times)


@dataclass(frozen=True)
class Ceilings:
    """`flops` of a large bf16 product and `bytes` of a copy (read plus written), a second."""

    flops: float
    bytes: float


def ceilings() -> Ceilings:
    """Random data: products of zeros run faster."""
    a, b = (torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    flops = 2 * 8192**3 / seconds(lambda: a @ b, 20)
    source = torch.randint(0, 255, (4 << 30,), device=DEVICE, dtype=torch.uint8)
    target = torch.empty_like(source)
    return Ceilings(flops, 2 * len(source) / seconds(lambda: target.copy_(source)))


def random_layer(family: FusedDeepseek, skew: float = 0.0) -> Layer:
    """A layer of experts with random weights, packed."""
    c = family.config
    random = torch.Generator(DEVICE).manual_seed(1)
    tensors = {
        name: random_tensor(c, name, one.shape, random, skew)
        for name, one in layer_tensors(c, 1).items()
        if ".experts." not in name
    }
    gate, down = expert_linears(c)["gate_proj"], expert_linears(c)["down_proj"]

    def draw(part: str, rows: int, width: int) -> Tensor:
        return random_tensor(c, part, (c.num_experts, rows, width), random, 0)

    group = c.expert_group_size or 1
    packed = PackedExperts(
        draw("weight_packed", 2 * gate[0], gate[1] // 8),
        draw("weight_scale", 2 * gate[0], gate[1] // group),
        draw("weight_packed", down[0], down[1] // 8),
        draw("weight_scale", down[0], down[1] // group),
    )
    shared = Block(
        torch.cat([tensors[f"mlp.shared_experts.{part}_proj.weight"] for part in ("gate", "up")]),
        tensors["mlp.shared_experts.down_proj.weight"],
    )
    router = Router(tensors["mlp.gate.weight"], tensors["mlp.gate.e_score_correction_bias"])
    return Layer(mla.pack_attention(tensors), tensors["post_attention_layernorm.weight"], shared, router, packed)


def measure(tokens: int, skew: float) -> list[tuple[str, float, float]]:
    """(part, seconds, floor in seconds) for `tokens` tokens in one layer, whatever rows go through at once."""
    torch.manual_seed(0)
    top = ceilings()
    print(f"ceiling {top.flops / 1e12:.0f} TFLOP/s, copy {top.bytes / 1e12:.2f} TB/s", flush=True)
    c = config()
    family = FusedDeepseek(c, DEVICE, torch.bfloat16)
    layer = random_layer(family, skew)
    found: list[tuple[str, float, float]] = []

    def note(name: str, work: Callable[[], Any], flops: float, size: float, times: float = 1) -> None:
        took, floor = times * seconds(work), times * max(flops / top.flops, size / top.bytes)
        found.append((name, took, floor))
        print(f"{name:34} {took * 1e3:8.2f} ms, floor {floor * 1e3:7.2f}, {flops * times / took / 1e12:5.0f} TFLOP/s, "
              f"{size * times / took / 1e12:.2f} TB/s", flush=True)  # fmt: skip

    weights = c.num_experts * 3 * c.hidden_size * c.expert_size
    note("unpack a layer", lambda: family.ready(layer), 0, weights * 2.5625)
    ready = family.ready(layer)
    experts, router = ready.experts, ready.router
    h, width, k = c.hidden_size, c.expert_size, c.experts_per_token
    for rows in (32768, 65536, 131072):
        if rows > tokens:
            break
        times = tokens / rows
        x = torch.randn(rows, h, device=DEVICE, dtype=torch.bfloat16)
        logits = torch.mm(x, router.weight.t(), out_dtype=torch.float32)
        chosen, shares = choose_experts(logits, router.bias, k, 2.827, True)
        back, ends = sort_by_expert(chosen, c.num_experts)
        spread = spread_rows(x, back, x.new_empty(rows * k, h))
        gate_up = torch._grouped_mm(spread, experts.gate_up.transpose(1, 2), offs=ends)
        inner = swiglu_rows(gate_up)
        load = ends.diff(prepend=ends.new_zeros(1))
        print(f"rows an expert: {int(load.min())} to {int(load.max())}, mean {rows * k / c.num_experts:.0f}")
        flops = 2 * rows * k * h * width
        tag = f" ({rows} at once)"
        note("grouped gate and up" + tag, lambda: torch._grouped_mm(spread, experts.gate_up.transpose(1, 2), offs=ends),
             2 * flops, 0, times)  # fmt: skip
        note("grouped down" + tag, lambda: torch._grouped_mm(inner, experts.down.transpose(1, 2), offs=ends), flops, 0, times)
        if rows == 65536:
            note(
                "router",
                lambda: torch.mm(x, router.weight.t(), out_dtype=torch.float32),
                2 * rows * h * c.num_experts,
                0,
                times,
            )
            note(
                "choice", lambda: choose_experts(logits, router.bias, k, 2.827, True), 0, rows * (4 * c.num_experts + 48), times
            )
            note("sort", lambda: sort_by_expert(chosen, c.num_experts), 0, rows * k * 8, times)
            note("spread rows", lambda: spread_rows(x, back, spread), 0, rows * 2 * h * (1 + k), times)
            note("swiglu", lambda: swiglu_rows(gate_up), 0, rows * k * 6 * width, times)
            note("combine", lambda: combine_rows(x, x, spread, back, shares), 0, rows * 2 * h * (3 + k), times)
            note("norm", lambda: rms_norm_rows(x, layer.mlp_norm, 1e-5), 0, rows * 4 * h, times)
            shared = layer.block
            note(
                "shared expert",
                lambda: F.linear(swiglu_rows(F.linear(x, shared.gate_up)), shared.down),
                6 * rows * h * width,
                0,
                times,
            )
            note("mixture", lambda: family.mixture(ready, router, experts, x), 3 * flops + 6 * rows * h * width, 0, times)
        del x, spread, gate_up, inner
    a, rows = layer.attention, sizes(DEVICE).span
    times = tokens / rows
    x = torch.randn(rows, h, device=DEVICE, dtype=torch.bfloat16)
    lower = F.linear(x, a.down)
    q = F.linear(lower[:, :1536].contiguous(), a.q_up).view(rows, 64, 192)
    kv = F.linear(lower[:, 1536:2048].contiguous(), a.kv_up).view(rows, 64, 256)
    key, out = torch.empty_like(q), torch.randn(rows, 8192, device=DEVICE, dtype=torch.bfloat16)
    turn = torch.rand(rows, 1, 32, device=DEVICE)
    note("MLA down", lambda: F.linear(x, a.down), 2 * rows * h * 2112, 0, times)
    note("MLA q up", lambda: F.linear(lower[:, :1536], a.q_up), 2 * rows * 1536 * 12288, 0, times)
    note("MLA kv up", lambda: F.linear(lower[:, 1536:2048], a.kv_up), 2 * rows * 512 * 16384, 0, times)
    note("MLA output, added", lambda: x.addmm_(out, a.output.t(), alpha=1e-3), 2 * rows * 8192 * h, 0, times)
    note(
        "positions",
        lambda: place_positions(q, kv, lower[:, 2048:], key, turn, turn),
        0,
        rows * 64 * (128 + 128 + 384 + 256),
        times,
    )
    for length in (300, 1000, 2048, 8192, 32768):
        size, many = bucket(length), max(1, 16384 // length)
        q1, k1, kv1 = (torch.randn(size, 64, w, device=DEVICE, dtype=torch.bfloat16) for w in (192, 192, 256))
        note(f"attention, samples of {length}", lambda: [causal_attention(q1, k1, kv1[..., 128:], 0.1) for _ in range(many)],
             many * scores(c, [length]), 0, tokens / (many * length))  # fmt: skip
    lengths = sample_lengths(tokens, 5)
    one = shard(lengths, 6)
    bounds = sample_bounds(0, one, c.vocab_size)
    lane = Lane(0, tokens, bounds, sizes(DEVICE), *family.tables(positions(bounds)))
    stream = torch.randn(tokens, h, device=DEVICE, dtype=torch.bfloat16)
    spans = list(lane.spans())
    note("attention of a shard", lambda: [family.attend(a, lane, span, stream) for span in spans],
         tokens * 2 * (h * 2112 + 1536 * 12288 + 512 * 16384 + 8192 * h) + scores(c, lengths), 0)  # fmt: skip
    note("a layer", lambda: family.through(ready, lane, stream), tokens * products(c) + scores(c, lengths), 0)
    print(f"samples {len(lengths)}, {tokens / len(lengths):.0f} tokens each; finite {bool(stream.isfinite().all())}; "
          f"peak {torch.cuda.max_memory_allocated() / 1e9:.1f} GB")  # fmt: skip
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=131072)
    parser.add_argument("--skew", type=float, default=0.0)
    given = parser.parse_args()
    with torch.no_grad():
        measure(given.tokens, given.skew)


if __name__ == "__main__":
    main()
