"""The layer-major forward that yields hidden states: each layer's weights come in once for many shards.

A pass takes its shards through layer 0, then through layer 1, and so on, while a thread reads the next layer. Every
shard is computed by itself, in chunks of a fixed number of tokens, so that its bytes depend neither on the shards
beside it nor on the device's memory.

Memory on the device, with T tokens in the pass, t in its largest shard, b bytes an element:
- the residual streams, T · hidden · b, and the tables of positions, T · rotary dimensions · 4;
- a Llama's attention of one shard, t · (2 · heads + 2 · kv_heads) · head_dim · b; a DeepSeek-V3's: see deepseek.py;
- one chunk's products, rows · (2 · intermediate + …) · b;
- two layers, the one that computes and the one that arrives; all of them with a LayerCache.
SmolLM2-135M in float32, 32k tokens in shards of 4k: 75 MB + 25 MB + 19 MB + 2 · 14 MB. The embedding table is read on
the CPU and let go before the first layer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from errors import UserError
from kimi_adapters.config import TextConfig
from kimi_adapters.deepseek import DeepseekForward
from kimi_adapters.deepseek_config import DeepseekConfig
from kimi_adapters.device_paths import has_fused_kernels, sizes
from kimi_adapters.lanes import Lane, ShardTokens, positions, sample_bounds
from kimi_adapters.layer_ids import check_layer_ids
from kimi_adapters.llama_config import LlamaConfig
from kimi_adapters.llama_stream import LlamaForward
from kimi_adapters.reading import Reading
from kimi_adapters.transport import Sink, Transport, transport_for
from kimi_adapters.weights import Checkpoint

__all__ = ["Family", "LayerCache", "ShardTokens", "stream_states"]

Progress = Callable[[int, int], None]


class Family(Protocol):
    """A family's forward over residual streams; one object serves one pass. A layer is whatever `load` gives."""

    def tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin of positions [T], on the device."""
        ...

    def check(self, checkpoint: Checkpoint, lanes: Sequence[Lane], kept: Mapping[int, Any] | None, held_bytes: int) -> bool:
        """Whether all layers stay on the device beside this pass, whose states wait in up to `held_bytes`; else two are
        there. `kept` are those that stayed so far, None where none may. UserError when two do not fit either."""
        ...

    def load(self, checkpoint: Checkpoint, index: int) -> Any:
        """Layer `index` as it is stored, on the device; called by another thread while a layer computes."""
        ...

    def ready(self, layer: Any) -> Any:
        """The layer as it computes: unpacked, once for all shards of a pass."""
        ...

    def through(self, layer: Any, lane: Lane, stream: Tensor) -> None:
        """Replaces the residual stream [T, hidden] of one shard by what leaves the layer."""
        ...


def family_of(config: TextConfig, device: torch.device, dtype: torch.dtype) -> Family:
    """The forward of a configuration's family."""
    if isinstance(config, LlamaConfig):
        return LlamaForward(config, device, dtype)
    if isinstance(config, DeepseekConfig):
        if has_fused_kernels(device, dtype):
            from kimi_adapters.deepseek_fused import FusedDeepseek, has_kernels_for

            if has_kernels_for(config):
                return FusedDeepseek(config, device, dtype)
        return DeepseekForward(config, device, dtype)
    raise UserError(f"hidden states of the family {config.family} are not computed here.")


@dataclass
class LayerCache:
    """Layers that stay on the device from pass to pass, by index, where all of them fit.

    One cache serves one checkpoint and dtype. Kept are all layers or none: with some, every pass would still wait for
    the slowest of the others. A pass that does not fit beside them drops them.
    """

    layers: dict[int, Any] = field(default_factory=dict)

    def drop(self, device: torch.device) -> None:
        """Lets them go, once nothing on the device computes with them any more."""
        if self.layers and device.type == "cuda":
            torch.cuda.synchronize(device)
        self.layers.clear()


@torch.no_grad()
def stream_states(
    shards: Sequence[ShardTokens],
    checkpoint: Checkpoint,
    layer_ids: Sequence[int],
    sink: Sink,
    device: torch.device | str = "cpu",
    compute_dtype: torch.dtype = torch.float32,
    state_dtype: torch.dtype = torch.float32,
    resident: LayerCache | None = None,
    progress: Progress | None = None,
    transport: "Transport | None" = None,
    reading: Reading | None = None,
) -> None:
    """Takes the shards of one pass through the verifier and hands their states to `sink`.

    `sink(shard, name, chunk)` gets "layer.{k}" when the stream enters layer k, for each k of `layer_ids`, and "last"
    after the last layer, before the final norm: chunks [rows, hidden] of shard number `shard`, on the CPU
    in `state_dtype`, in the order of the file. On an NVIDIA GPU the sink is called by another thread, and the chunk's
    memory is used again once it returns. `progress(layers done, layers)` follows each layer. With `resident`, layers
    found there are not read and layers read are left there, if all of them fit.

    `transport` is a GpuTransport that serves many passes: then states may still be on their way to the sink when this
    returns; `transport.then` tells when they are there. Without one, all of them have been through the sink. `reading`
    sets the pace at which layers are read, and measures it.

    UserError: layer ids that do not fit, offsets or token ids that do not fit the shard or the vocabulary.
    """
    device = torch.device(device)
    reading = reading or Reading()
    if transport is not None:
        _pass(shards, checkpoint, layer_ids, sink, device, compute_dtype, state_dtype, resident, progress, transport, reading)
        return
    with transport_for(checkpoint, device) as own:
        _pass(shards, checkpoint, layer_ids, sink, device, compute_dtype, state_dtype, resident, progress, own, reading)
        own.finish()


def _pass(
    shards: Sequence[ShardTokens],
    checkpoint: Checkpoint,
    layer_ids: Sequence[int],
    sink: Sink,
    device: torch.device,
    compute_dtype: torch.dtype,
    state_dtype: torch.dtype,
    resident: LayerCache | None,
    progress: Progress | None,
    transport: Transport,
    reading: Reading,
) -> None:
    config = checkpoint.config
    wanted = set(check_layer_ids(layer_ids, config.num_layers))
    family = family_of(config, device, compute_dtype)
    lanes = [_lane(number, shard, config, family, device) for number, shard in enumerate(shards)]
    kept = resident.layers if resident is not None else None
    if not family.check(checkpoint, lanes, kept, transport.held_bytes):
        if resident is not None:
            resident.drop(device)
        kept = None
    layers = transport.layers(reading.through(family, kept is not None), kept)
    streams = transport.embedded([shard.input_ids for shard in shards], compute_dtype)
    for index, stored in enumerate(layers):
        layer = family.ready(stored)
        for lane, stream in zip(lanes, streams, strict=True):
            if index in wanted:
                transport.emit(sink, lane.number, f"layer.{index}", stream, state_dtype)
            family.through(layer, lane, stream)
        del layer, stored
        if progress:
            progress(index + 1, config.num_layers)
    for lane, stream in zip(lanes, streams, strict=True):
        transport.emit(sink, lane.number, "last", stream, state_dtype)


def _lane(number: int, shard: ShardTokens, config: TextConfig, family: Family, device: torch.device) -> Lane:
    samples = sample_bounds(number, shard, config.vocab_size)
    cos, sin = family.tables(positions(samples))
    return Lane(number, len(shard.input_ids), samples, sizes(device), cos, sin)
