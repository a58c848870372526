"""The DeepSeek-V3 forward, our own, layer by layer: Kimi-K2 and K2.5 are of this family.

Memory: see plain_memory.py (with fused kernels: device_memory.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kimi_adapters import deepseek_layout, mla, plain_memory, yarn
from kimi_adapters.deepseek_config import DeepseekConfig
from kimi_adapters.device_paths import free_bytes, sizes
from kimi_adapters.lanes import Lane, pieces
from kimi_adapters.layers import linear, rms_norm, swiglu
from kimi_adapters.moe import Experts, PackedExperts, Router, dispatch, route, routed_sum
from kimi_adapters.pass_memory import Need, PassMemory, Room, layer_bytes
from kimi_adapters.weights import Checkpoint


@dataclass(frozen=True)
class Block:
    """A dense SwiGLU block: gate_up [2 · width, hidden], down [hidden, width]."""

    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True)
class Layer:
    """One layer. `block` is the dense block, or the shared experts beside the routed ones."""

    attention: mla.Attention
    mlp_norm: Tensor
    block: Block
    router: Router | None
    experts: Experts | PackedExperts | None


class DeepseekForward:
    """What layer_stream asks of a family; see there."""

    def __init__(self, config: DeepseekConfig, device: torch.device, dtype: torch.dtype):
        self.config = config
        self.sizes = sizes(device)
        self.device = device
        self.dtype = dtype

    def tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin of positions [T]."""
        return yarn.rope_tables(self.config, positions.to(self.device))

    def check(self, checkpoint: Checkpoint, lanes: Sequence[Lane], kept: Mapping[int, Any] | None, held_bytes: int) -> bool:
        """As Family.check."""
        longest = max((end - start for lane in lanes for start, end in lane.samples), default=0)
        layers, cpu = layer_bytes(self.config, self.dtype.itemsize), self.device.type == "cpu"
        free = free_bytes(self.device) + (layers.total if cpu and kept else 0)
        memory = PassMemory(
            lambda shards, size: self.need(shards, longest, size, held_bytes),
            layers,
            [lane.total for lane in lanes],
            kept is not None,
        )
        memory.check(len(lanes), lambda size: Room(free, "host" if cpu else "device"))
        return memory.stay(len(lanes), free)

    def need(self, shards: Sequence[int], longest: int, layer_bytes: int, held_bytes: int) -> Need:
        """What a pass over shards of those tokens needs with so many bytes of layers: see plain_memory.py."""
        return plain_memory.need(self.config, self.sizes, shards, longest, layer_bytes, held_bytes, self.dtype.itemsize)

    def load(self, checkpoint: Checkpoint, index: int) -> Layer:
        """Layer `index` as it is stored, on the device: experts stay packed."""
        names = [name for name in deepseek_layout.layer_tensors(self.config, index) if not name.startswith("mlp.experts.")]
        tensors = {name: checkpoint.read(f"layers.{index}.{name}", self._dtype_of(name), self.device) for name in names}
        dense = index < self.config.first_dense_layers
        return Layer(
            attention=mla.pack_attention(tensors),
            mlp_norm=tensors["post_attention_layernorm.weight"],
            block=_block(tensors, "mlp" if dense else "mlp.shared_experts"),
            router=None if dense else Router(tensors["mlp.gate.weight"], tensors["mlp.gate.e_score_correction_bias"]),
            experts=None if dense else self._experts(checkpoint, index),
        )

    def ready(self, layer: Layer) -> Layer:
        """The layer with its experts unpacked, once for all shards of a pass."""
        if isinstance(layer.experts, PackedExperts):
            return replace(layer, experts=layer.experts.unpack(self.dtype, self.sizes.experts))
        return layer

    def through(self, layer: Layer, lane: Lane, stream: Tensor) -> None:
        """Replaces the residual stream [T, hidden] of a shard by what leaves the layer."""
        mla.attend(layer.attention, self.config, lane, stream)
        if layer.router is None:
            for rows in lane.chunks():
                stream[rows] += _through_block(layer.block, self._normed(layer, stream[rows]))
            return
        if not isinstance(layer.experts, Experts):
            raise ValueError("a layer with packed experts must be made ready first")
        for rows in lane.expert_chunks():
            self._through_experts(layer, layer.router, layer.experts, stream[rows])

    def _through_experts(self, layer: Layer, router: Router, experts: Experts, stream: Tensor) -> None:
        normed = self._normed(layer, stream)
        chosen, weights = route(normed, router, self.config)
        plan = dispatch(chosen, self.config.num_experts)
        total = routed_sum(normed, experts, plan, weights, self.sizes.experts)
        for rows in pieces(0, len(stream), self.sizes.tokens):
            shared = _through_block(layer.block, normed[rows])
            stream[rows] = (total[rows] + shared.float() + stream[rows].float()).to(stream.dtype)

    def _normed(self, layer: Layer, x: Tensor) -> Tensor:
        return rms_norm(x, layer.mlp_norm, self.config.rms_norm_eps)

    def _dtype_of(self, name: str) -> torch.dtype:
        """The router works in float32: cast to bf16, its correction loses the digits that decide between experts."""
        return torch.float32 if name.startswith("mlp.gate.") else self.dtype

    def _experts(self, checkpoint: Checkpoint, index: int) -> Experts | PackedExperts:
        linears = deepseek_layout.expert_linears(self.config)
        names = [f"layers.{index}.mlp.experts.{expert}" for expert in range(self.config.num_experts)]

        def stacked(parts: tuple[str, ...], suffix: str, dtype: torch.dtype | None) -> Tensor:
            tensors = [[f"{name}.{part}.{suffix}" for part in parts] for name in names]
            return checkpoint.read_stacked(tensors, dtype, self.device)

        gate_up, down = ("gate_proj", "up_proj"), ("down_proj",)
        if not deepseek_layout.packed(self.config, index):
            return Experts(stacked(gate_up, "weight", self.dtype), stacked(down, "weight", self.dtype))
        for name in names:
            for part, shape in linears.items():
                checkpoint.check_values(f"{name}.{part}.weight_shape", shape)
        return PackedExperts(
            stacked(gate_up, "weight_packed", None),
            stacked(gate_up, "weight_scale", None),
            stacked(down, "weight_packed", None),
            stacked(down, "weight_scale", None),
        )


def _block(tensors: Mapping[str, Tensor], module: str) -> Block:
    gate_up = torch.cat([tensors[f"{module}.{part}.weight"] for part in ("gate_proj", "up_proj")])
    return Block(gate_up, tensors[f"{module}.down_proj.weight"])


def _through_block(block: Block, x: Tensor) -> Tensor:
    return linear(swiglu(linear(x, block.gate_up)), block.down)
