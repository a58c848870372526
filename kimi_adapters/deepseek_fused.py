"""The DeepSeek-V3 forward on an NVIDIA GPU in bf16: deepseek.py's computation with fused kernels.

Nothing in a layer waits for the device, so that launches run ahead. Rows of a shard go through in the fixed pieces of
chunk_sizes.Sizes, all experts of a layer in one grouped product: a shard's bytes depend on the shard alone.

Attention is one call a sample, of its length rounded up to a bucket: cuDNN plans each new length anew (some 100 ms),
and buckets keep the lengths few. What a call reads past its sample are the next sample's rows; causal masking keeps
them from every row that is kept. (A sample with infinite values can so spoil the end of the one before it.)

Memory: see device_memory.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from kimi_adapters import device_memory, mla
from kimi_adapters.deepseek import Block, DeepseekForward, Layer
from kimi_adapters.deepseek_config import DeepseekConfig
from kimi_adapters.device_paths import causal_attention
from kimi_adapters.grouped_kernels import HALF, fits, grouped_product, grouped_swiglu
from kimi_adapters.lanes import Lane, Span
from kimi_adapters.layers import linear
from kimi_adapters.mla import LATENT_NORM_EPS
from kimi_adapters.mla_kernels import place_positions, rms_norm_rows
from kimi_adapters.moe import Experts, PackedExperts, Router, route
from kimi_adapters.moe_kernels import choose_experts, combine_rows, sort_by_expert, spread_rows, swiglu_rows, unpack_int4
from kimi_adapters.pass_memory import Need
from kimi_adapters.weights import Checkpoint

SIDE_STREAMS = 2


@dataclass
class Room:
    """Where a layer's experts are unpacked: 33.8 GB of K2.5, kept from layer to layer and from pass to pass."""

    experts: Experts | None = None
    paired: bool = False  # gate_up as grouped_kernels.grouped_swiglu takes it


def has_kernels_for(config: DeepseekConfig) -> bool:
    """Whether the kernels take these widths: pairs a power of two, even heads, rows of 16 bytes for grouped products."""
    pairs = config.qk_rope_head_dim // 2
    even = config.qk_nope_head_dim % 2 == 0 and config.v_head_dim % 2 == 0 and config.kv_lora_rank % 2 == 0
    wide = all(width % 8 == 0 for width in (config.hidden_size, config.expert_size, config.qk_head_dim, config.v_head_dim))
    return pairs & (pairs - 1) == 0 and even and wide and (config.q_lora_rank or 0) % 2 == 0


def bucket(length: int) -> int:
    """The length that attention is called with: steps of 1/16 to 1/8 of the next power of two, at least 64."""
    step = max(64, 1 << max(0, length.bit_length() - 4))
    return -(-length // step) * step


class FusedDeepseek(DeepseekForward):
    """What layer_stream asks of a family; see there."""

    def __init__(self, config: DeepseekConfig, device: torch.device, dtype: torch.dtype, room: Room | None = None):
        super().__init__(config, device, dtype)
        self._room = room or Room()
        self._sides = [torch.cuda.Stream(device) for _ in range(SIDE_STREAMS)]

    def need(self, shards: Sequence[int], longest: int, layer_bytes: int, held_bytes: int) -> Need:
        """As DeepseekForward.need: see device_memory.py."""
        return device_memory.need(self.config, self.sizes, shards, longest, layer_bytes, held_bytes)

    def load(self, checkpoint: Checkpoint, index: int) -> Layer:
        """Layer `index` as it is stored, on the device; a router whose float32 weights are bf16 values is kept in bf16."""
        layer = super().load(checkpoint, index)
        if layer.router is None:
            return layer
        narrow = layer.router.weight.to(torch.bfloat16)
        if not torch.equal(narrow.float(), layer.router.weight):
            return layer
        return replace(layer, router=Router(narrow, layer.router.bias))

    def ready(self, layer: Layer) -> Layer:
        """The layer with its experts unpacked, into the room of the last one's."""
        packed = layer.experts
        if not isinstance(packed, PackedExperts):
            return layer
        if packed.gate_up_scale.dtype != torch.bfloat16:
            return super().ready(layer)
        if self._room.experts is None:
            self._room.experts = Experts(_room_for(packed.gate_up), _room_for(packed.down))
        room = self._room.experts
        self._room.paired = fits(*room.gate_up.shape[1:]) and fits(*room.down.shape[1:])
        unpack_int4(packed.gate_up, packed.gate_up_scale, room.gate_up, HALF if self._room.paired else 0)
        unpack_int4(packed.down, packed.down_scale, room.down)
        return replace(layer, experts=room)

    def through(self, layer: Layer, lane: Lane, stream: Tensor) -> None:
        """Replaces the residual stream [T, hidden] of a shard by what leaves the layer."""
        for span in lane.spans():
            self.attend(layer.attention, lane, span, stream)
        if layer.router is None or not isinstance(layer.experts, Experts):
            for rows in lane.chunks():
                self.dense(layer, stream[rows])
            return
        for rows in lane.expert_chunks():
            self.mixture(layer, layer.router, layer.experts, stream[rows])

    def attend(self, weights: mla.Attention, lane: Lane, span: Span, stream: Tensor) -> None:
        """Adds a span's attention to the residual stream, in place."""
        config, rows = self.config, slice(span.start, span.end)
        x = stream[rows]
        lower = linear(rms_norm_rows(x, weights.norm, config.rms_norm_eps), weights.down, weights.down_bias)
        narrow = [config.kv_lora_rank, config.qk_rope_head_dim]
        first, latent, shared_key = lower.split([lower.shape[-1] - sum(narrow), *narrow], dim=-1)
        nope = config.qk_nope_head_dim
        slack = _slack(span)
        q = x.new_empty(len(x) + slack, config.num_heads, config.qk_head_dim)
        kv = x.new_empty(len(x) + slack, config.num_heads, nope + config.v_head_dim)
        k = torch.empty_like(q)
        if weights.q_up is not None and weights.q_norm is not None:
            _product(rms_norm_rows(first, weights.q_norm, LATENT_NORM_EPS), weights.q_up, q)
        else:
            q[: len(x)] = first.unflatten(-1, q.shape[1:])
        _product(rms_norm_rows(latent, weights.kv_norm, LATENT_NORM_EPS), weights.kv_up, kv)
        for part in (q, k, kv):
            part[len(x) :].zero_()
        place_positions(q[: len(x)], kv[: len(x)], shared_key, k[: len(x)], lane.cos[rows], lane.sin[rows])
        attended = x.new_empty(len(x), config.num_heads, config.v_head_dim)
        self._scores(span, q, k, kv[..., nope:], attended)
        if weights.output_bias is not None:
            x += weights.output_bias
        x.addmm_(attended.flatten(1), weights.output.t())

    def _scores(self, span: Span, q: Tensor, k: Tensor, v: Tensor, attended: Tensor) -> None:
        """Attention of a span's samples, by turns on the side streams: one fills the device where another ends."""
        main = torch.cuda.current_stream(self.device)
        ready = main.record_event()
        for side in self._sides:
            side.wait_event(ready)
        for number, (start, end) in enumerate(span.samples):
            here = slice(start - span.start, start - span.start + bucket(end - start))
            with torch.cuda.stream(self._sides[number % len(self._sides)]):
                out = causal_attention(q[here], k[here], v[here], self.config.softmax_scale)
                attended[start - span.start : end - span.start] = out[: end - start]
        for side in self._sides:
            main.wait_event(side.record_event())

    def dense(self, layer: Layer, stream: Tensor) -> None:
        """Adds the dense block of some rows to the residual stream, in place."""
        normed = rms_norm_rows(stream, layer.mlp_norm, self.config.rms_norm_eps)
        stream.addmm_(swiglu_rows(F.linear(normed, layer.block.gate_up)), layer.block.down.t())

    def mixture(self, layer: Layer, router: Router, experts: Experts, stream: Tensor) -> None:
        """Adds the shared and the routed experts of some rows to the residual stream, in place."""
        normed = rms_norm_rows(stream, layer.mlp_norm, self.config.rms_norm_eps)
        chosen, weights = self._routed(normed, router)
        back, ends = sort_by_expert(chosen, self.config.num_experts)
        shared = _through_block(layer.block, normed)
        rows = spread_rows(normed, back, normed.new_empty(back.numel(), normed.shape[1]))
        tiled = self._room.paired and experts is self._room.experts
        if tiled:
            inner = grouped_swiglu(rows, experts.gate_up, ends)
        else:
            inner = swiglu_rows(torch._grouped_mm(rows, experts.gate_up.transpose(1, 2), offs=ends))
        del rows  # its memory takes the outputs
        if tiled:
            outputs = grouped_product(inner, experts.down, ends)
        else:
            outputs = torch._grouped_mm(inner, experts.down.transpose(1, 2), offs=ends)
        combine_rows(stream, shared, outputs, back, weights)

    def _routed(self, normed: Tensor, router: Router) -> tuple[Tensor, Tensor]:
        """Each token's experts, int16 [t, k], and weights. Products of bf16 values, their sums and all after in float32."""
        config = self.config
        if config.expert_groups != config.groups_per_token:
            chosen, weights = route(normed, Router(router.weight.float(), router.bias), config)
            return chosen.to(torch.int16), weights
        if router.weight.dtype == torch.bfloat16:
            logits = torch.mm(normed, router.weight.t(), out_dtype=torch.float32)
        else:
            logits = normed.float() @ router.weight.t()
        return choose_experts(
            logits, router.bias, config.experts_per_token, config.routed_scaling_factor, config.norm_topk_prob
        )


def _slack(span: Span) -> int:
    """Rows past the span's end that attention over buckets reads."""
    return max(start + bucket(end - start) for start, end in span.samples) - span.end


def _product(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """x · weightᵀ into the first rows of `out` [≥ rows, heads, width]."""
    torch.mm(x, weight.t(), out=out[: len(x)].flatten(1))


def _room_for(packed: Tensor) -> Tensor:
    count, rows, words = packed.shape
    return torch.empty(count, rows, words * 8, dtype=torch.bfloat16, device=packed.device)


def _through_block(block: Block, x: Tensor) -> Tensor:
    return F.linear(swiglu_rows(F.linear(x, block.gate_up)), block.down)
