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

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from errors import UserError
from kimi_adapters.config import TextConfig
from kimi_adapters.deepseek import DeepseekForward
from kimi_adapters.deepseek_config import DeepseekConfig
from kimi_adapters.device_paths import sizes
from kimi_adapters.lanes import Lane, ShardTokens, pieces, positions, sample_bounds
from kimi_adapters.layer_ids import check_layer_ids
from kimi_adapters.llama_config import LlamaConfig
from kimi_adapters.llama_stream import LlamaForward
from kimi_adapters.weights import Checkpoint

__all__ = ["Family", "LayerCache", "ShardTokens", "stream_states"]

# Rows that a sink gets at once: 6 MB of a K2.5 state in bf16.
TOKEN_CHUNK = 512

Sink = Callable[[int, str, Tensor], None]
Progress = Callable[[int, int], None]


class Family(Protocol):
    """A family's forward over residual streams; one object serves one pass. A layer is whatever `load` gives."""

    def tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin of positions [T], on the device."""
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
        return DeepseekForward(config, device, dtype)
    raise UserError(f"hidden states of the family {config.family} are not computed here.")


@dataclass
class LayerCache:
    """Layers that stay on the device from pass to pass, by index. One cache serves one checkpoint and dtype."""

    layers: dict[int, Any] = field(default_factory=dict)


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
) -> None:
    """Takes the shards of one pass through the verifier and hands their states to `sink`.

    `sink(shard, name, chunk)` gets "layer.{k}" when the stream enters layer k, for each k of `layer_ids`, and "last"
    after the last layer, before the final norm: chunks [up to TOKEN_CHUNK, hidden] of shard number `shard`, on the CPU
    in `state_dtype`, in the order of the file; the chunk is the sink's to keep. `progress(layers done, layers)` follows
    each layer. With `resident`, layers found there are not read and layers read are left there.

    UserError: layer ids that do not fit, offsets or token ids that do not fit the shard or the vocabulary.
    """
    config = checkpoint.config
    wanted = set(check_layer_ids(layer_ids, config.num_layers))
    device = torch.device(device)
    family = family_of(config, device, compute_dtype)
    lanes = [_lane(number, shard, config, family, device) for number, shard in enumerate(shards)]
    table = checkpoint.embed()
    streams = [F.embedding(shard.input_ids.long(), table).to(device, compute_dtype) for shard in shards]
    del table
    for index, stored in enumerate(_layers(checkpoint, family, resident)):
        layer = family.ready(stored)
        for lane, stream in zip(lanes, streams, strict=True):
            if index in wanted:
                _emit(sink, lane, f"layer.{index}", stream, state_dtype)
            family.through(layer, lane, stream)
        del layer
        if progress:
            progress(index + 1, config.num_layers)
    for lane, stream in zip(lanes, streams, strict=True):
        _emit(sink, lane, "last", stream, state_dtype)


def _lane(number: int, shard: ShardTokens, config: TextConfig, family: Family, device: torch.device) -> Lane:
    samples = sample_bounds(number, shard, config.vocab_size)
    cos, sin = family.tables(positions(samples))
    return Lane(number, len(shard.input_ids), samples, sizes(device), cos, sin)


def _emit(sink: Sink, lane: Lane, name: str, stream: Tensor, dtype: torch.dtype) -> None:
    for chunk in pieces(0, lane.total, TOKEN_CHUNK):
        sink(lane.number, name, stream[chunk].to("cpu", dtype, copy=True))


def _layers(checkpoint: Checkpoint, family: Family, resident: LayerCache | None) -> Iterator[Any]:
    """The layers in order; while one is in use, a thread reads the next."""

    def load(index: int) -> Any:
        if resident is not None and index in resident.layers:
            return resident.layers[index]
        layer = family.load(checkpoint, index)
        if resident is not None:
            resident.layers[index] = layer
        return layer

    with ThreadPoolExecutor(max_workers=1) as reader:
        arriving = reader.submit(load, 0)
        for index in range(checkpoint.config.num_layers):
            layer = arriving.result()
            if index + 1 < checkpoint.config.num_layers:
                arriving = reader.submit(load, index + 1)
            yield layer
