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
from kimi_adapters.grouped_kernels import grouped_product, grouped_swiglu
from kimi_adapters.lanes import Lane, positions, sample_bounds
from kimi_adapters.mla_kernels import place_positions, rms_norm_rows
from kimi_adapters.moe import Experts, PackedExperts, Router
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


class Parts:
    """Measures parts of a layer for `tokens` tokens, whatever rows go through at once, and prints each at once."""

    def __init__(self, tokens: int, skew: float):
        torch.manual_seed(0)
        self.tokens = tokens
        self.top = ceilings()
        print(f"ceiling {self.top.flops / 1e12:.0f} TFLOP/s, copy {self.top.bytes / 1e12:.2f} TB/s", flush=True)
        self.family = FusedDeepseek(config(), DEVICE, torch.bfloat16)
        self.packed = random_layer(self.family, skew)

    def note(self, name: str, work: Callable[[], Any], times: float, flops: float = 0, size: float = 0) -> None:
        """One part: `times` calls of `work`, each of `flops` operations and `size` bytes, are a layer's."""
        took = seconds(work)
        floor = max(flops / self.top.flops, size / self.top.bytes)
        rate = f"{flops / took / 1e12:5.0f} TFLOP/s" if flops else f"{size / took / 1e12:5.2f} TB/s"
        print(f"{name:36}{took * times * 1e3:8.2f} ms, floor {floor * times * 1e3:7.2f}, {rate}", flush=True)

    def unpacking(self) -> None:
        """Once a pass."""
        c = self.family.config
        weights = c.num_experts * 3 * c.hidden_size * c.expert_size
        self.note("unpack a layer, a pass", lambda: self.family.ready(self.packed), 1, size=weights * 2.5625)
        self.layer = self.family.ready(self.packed)

    def mixture(self, rows: int) -> None:
        """What the experts take, `rows` tokens at once."""
        c, layer, times = self.family.config, self.layer, self.tokens / rows
        experts, router = layer.experts, layer.router
        assert isinstance(experts, Experts) and router is not None
        h, width, k = c.hidden_size, c.expert_size, c.experts_per_token
        x = torch.randn(rows, h, device=DEVICE, dtype=torch.bfloat16)
        weight = router.weight.t()
        logits = torch.mm(x, weight, out_dtype=torch.float32)
        chosen, shares = choose_experts(logits, router.bias, k, c.routed_scaling_factor, True)
        back, ends = sort_by_expert(chosen, c.num_experts)
        spread = spread_rows(x, back, x.new_empty(rows * k, h))
        gate_up = torch._grouped_mm(spread, experts.gate_up.transpose(1, 2), offs=ends)
        inner = swiglu_rows(gate_up)
        load = ends.diff(prepend=ends.new_zeros(1))
        print(f"{rows} rows at once: {int(load.min())} to {int(load.max())} an expert, mean {rows * k / c.num_experts:.0f}")
        flops, note = 2 * rows * k * h * width, self.note
        note(
            "gate and up, torch",
            lambda: torch._grouped_mm(spread, experts.gate_up.transpose(1, 2), offs=ends),
            times,
            2 * flops,
        )
        note("down, torch", lambda: torch._grouped_mm(inner, experts.down.transpose(1, 2), offs=ends), times, flops)
        note("gate, up and SwiGLU, Triton", lambda: grouped_swiglu(spread, experts.gate_up, ends), times, 2 * flops)
        note("down, Triton", lambda: grouped_product(inner, experts.down, ends), times, flops)
        note("router", lambda: torch.mm(x, weight, out_dtype=torch.float32), times, 2 * rows * h * c.num_experts)
        note("choice", lambda: choose_experts(logits, router.bias, k, 2.8, True), times, size=rows * (4 * c.num_experts + 48))
        note("sort", lambda: sort_by_expert(chosen, c.num_experts), times, size=rows * k * 8)
        note("spread rows", lambda: spread_rows(x, back, spread), times, size=rows * 2 * h * (1 + k))
        note("SwiGLU", lambda: swiglu_rows(gate_up), times, size=rows * k * 6 * width)
        note("combine", lambda: combine_rows(x, x, spread, back, shares), times, size=rows * 2 * h * (3 + k))
        note("norm", lambda: rms_norm_rows(x, layer.mlp_norm, 1e-5), times, size=rows * 4 * h)
        shared = layer.block
        note(
            "shared expert",
            lambda: F.linear(swiglu_rows(F.linear(x, shared.gate_up)), shared.down),
            times, 6 * rows * h * width * c.num_shared_experts,
        )  # fmt: skip
        note(
            "all of the mixture",
            lambda: self.family.mixture(layer, router, experts, x),
            times,
            3 * flops + 6 * rows * h * width,
        )

    def projections(self) -> None:
        """What latent attention takes beside the scores."""
        c, a, rows = self.family.config, self.layer.attention, sizes(DEVICE).span
        q_up = a.q_up
        assert q_up is not None and c.q_lora_rank
        h, first, latent, rope, times = c.hidden_size, c.q_lora_rank, c.kv_lora_rank, c.qk_rope_head_dim, self.tokens / rows
        x = torch.randn(rows, h, device=DEVICE, dtype=torch.bfloat16)
        lower = F.linear(x, a.down)
        parts = lower.split([first, latent, rope], dim=1)
        q = F.linear(parts[0], q_up).unflatten(1, (c.num_heads, -1))
        kv = F.linear(parts[1], a.kv_up).unflatten(1, (c.num_heads, -1))
        k, out = torch.empty_like(q), torch.randn(rows, c.num_heads * c.v_head_dim, device=DEVICE, dtype=torch.bfloat16)
        turn = torch.rand(rows, 1, rope // 2, device=DEVICE)
        self.note("MLA down", lambda: F.linear(x, a.down), times, 2 * rows * a.down.numel())
        self.note("MLA q up", lambda: F.linear(parts[0], q_up), times, 2 * rows * q_up.numel())
        self.note("MLA kv up", lambda: F.linear(parts[1], a.kv_up), times, 2 * rows * a.kv_up.numel())
        self.note("MLA output, added", lambda: x.addmm_(out, a.output.t(), alpha=1e-3), times, 2 * rows * a.output.numel())
        moved = rows * 2 * c.num_heads * (2 * c.qk_nope_head_dim + 3 * rope)
        self.note("positions", lambda: place_positions(q, kv, parts[2], k, turn, turn), times, size=moved)

    def attention(self, length: int) -> None:
        """Scores of samples of one length."""
        c, size, many = self.family.config, bucket(length), max(1, 32768 // length)
        q, k = (torch.randn(size, c.num_heads, c.qk_head_dim, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
        v = torch.randn(size, c.num_heads, 2 * c.v_head_dim, device=DEVICE, dtype=torch.bfloat16)[..., c.v_head_dim :]

        def work() -> None:
            for _ in range(many):
                causal_attention(q, k, v, 0.1)

        self.note(f"attention, samples of {length}", work, self.tokens / (many * length), many * scores(c, [length]))

    def whole(self) -> None:
        """A layer of a shard of real lengths."""
        c, lengths = self.family.config, sample_lengths(self.tokens, 5)
        bounds = sample_bounds(0, shard(lengths, 6), c.vocab_size)
        lane = Lane(0, self.tokens, bounds, sizes(DEVICE), *self.family.tables(positions(bounds)))
        stream = torch.randn(self.tokens, c.hidden_size, device=DEVICE, dtype=torch.bfloat16)
        flops, spans, a = scores(c, lengths), list(lane.spans()), self.layer.attention

        def attend() -> None:
            for span in spans:
                self.family.attend(a, lane, span, stream)

        projections = sum(w.numel() for w in (a.down, a.q_up, a.kv_up, a.output) if w is not None)
        self.note("attention of a shard", attend, 1, flops + 2 * self.tokens * projections)
        self.note("a layer", lambda: self.family.through(self.layer, lane, stream), 1, flops + self.tokens * products(c))
        peak = torch.cuda.max_memory_allocated() / 1e9
        print(f"{len(lengths)} samples, finite {bool(stream.isfinite().all())}, peak {peak:.1f} GB")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=131072)
    parser.add_argument("--skew", type=float, default=0.0)
    given = parser.parse_args()
    with torch.no_grad():
        parts = Parts(given.tokens, given.skew)
        parts.unpacking()
        for rows in (65536, 131072):
            parts.mixture(rows)
        parts.projections()
        for length in (300, 1000, 2048, 8192, 32768):
            parts.attention(length)
        parts.whole()


if __name__ == "__main__":
    main()
