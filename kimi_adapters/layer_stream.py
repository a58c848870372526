"""The layer-major forward that yields hidden states: each layer's weights come in once for many shards.

A pass takes its shards through layer 0, then through layer 1, and so on, while a thread reads the next layer. Every
shard is computed by itself, in chunks of a fixed number of tokens, so that its bytes depend neither on the shards
beside it nor on the device's memory.

Memory on the device, with T tokens in the pass, t in its largest shard, b bytes an element:
- the residual streams, T · hidden · b;
- one shard's attention, t · (2 · heads + 2 · kv_heads) · head_dim · b;
- one chunk's products, TOKEN_CHUNK · (2 · intermediate + …) · b;
- two layers, the one that computes and the one that arrives; all of them with a LayerCache.
SmolLM2-135M in float32, 32k tokens in shards of 4k: 75 MB + 25 MB + 19 MB + 2 · 14 MB. The embedding table is read on
the CPU and let go before the first layer.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from errors import UserError
from kimi_adapters.config import TextConfig
from kimi_adapters.layer_ids import check_layer_ids
from kimi_adapters.llama import (
    LayerWeights,
    finish_layer,
    inverse_frequencies,
    pack_layer,
    project_qkv,
    rope_tables,
)
from kimi_adapters.weights import Checkpoint

# Products of 512 rows run at the rate of large ones on a CPU, and keep their temporaries (6 MB here) in its cache.
TOKEN_CHUNK = 512

Sink = Callable[[int, str, Tensor], None]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ShardTokens:
    """A token shard: `input_ids` integers [T]; sample i is offsets[i]:offsets[i + 1], `offsets` integers [n + 1]."""

    input_ids: Tensor
    offsets: Tensor


@dataclass
class LayerCache:
    """Layers that stay on the device from pass to pass, by index. One cache serves one checkpoint and dtype."""

    layers: dict[int, LayerWeights] = field(default_factory=dict)


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
    lanes = [_Lane.of(number, shard, config, device) for number, shard in enumerate(shards)]
    table = checkpoint.embed()
    streams = [F.embedding(shard.input_ids.long(), table).to(device, compute_dtype) for shard in shards]
    del table
    for index, layer in enumerate(_layers(checkpoint, device, compute_dtype, resident)):
        for lane, stream in zip(lanes, streams, strict=True):
            if index in wanted:
                _emit(sink, lane, f"layer.{index}", stream, state_dtype)
            _through_layer(layer, config, lane, stream)
        if progress:
            progress(index + 1, config.num_layers)
    for lane, stream in zip(lanes, streams, strict=True):
        _emit(sink, lane, "last", stream, state_dtype)


@dataclass(frozen=True)
class _Lane:
    """What a shard needs in every layer: its samples' bounds, and cos and sin of each token's place in its sample."""

    number: int
    bounds: list[tuple[int, int]]
    chunks: list[slice]
    cos: Tensor
    sin: Tensor

    @staticmethod
    def of(number: int, shard: ShardTokens, config: TextConfig, device: torch.device) -> "_Lane":
        ids, offsets = shard.input_ids, shard.offsets.tolist()
        bounds = list(zip(offsets, offsets[1:], strict=False))
        total = len(ids)
        if not offsets or offsets[0] != 0 or offsets[-1] != total or any(start > end for start, end in bounds):
            raise UserError(f"shard {number} of the pass has offsets that do not cover its {total} tokens; make it again.")
        if total and (int(ids.min()) < 0 or int(ids.max()) >= config.vocab_size):
            raise UserError(
                f"shard {number} of the pass has token ids outside the verifier's vocabulary of {config.vocab_size}; "
                "make the corpus with this verifier's tokenizer."
            )
        places = [torch.arange(end - start) for start, end in bounds]
        positions = torch.cat(places) if places else torch.zeros(0, dtype=torch.int64)
        cos, sin = rope_tables(inverse_frequencies(config, device), positions.to(device))
        chunks = [slice(start, min(start + TOKEN_CHUNK, total)) for start in range(0, total, TOKEN_CHUNK)]
        return _Lane(number, bounds, chunks, cos, sin)


def _through_layer(layer: LayerWeights, config: TextConfig, lane: _Lane, stream: Tensor) -> None:
    """Replaces the residual stream [T, hidden] of a shard by what leaves the layer."""
    total, groups = len(stream), config.num_heads // config.num_kv_heads
    q = stream.new_empty(total, config.num_heads, config.head_dim)
    k = stream.new_empty(total, config.num_kv_heads, config.head_dim)
    v = torch.empty_like(k)
    for chunk in lane.chunks:
        q[chunk], k[chunk], v[chunk] = project_qkv(layer, config, stream[chunk], lane.cos[chunk], lane.sin[chunk])
    attended = torch.empty_like(q)
    for start, end in lane.bounds:
        if start < end:
            query, key, value = (part[start:end].transpose(0, 1)[None] for part in (q, k, v))
            out = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=groups > 1)
            attended[start:end] = out[0].transpose(0, 1)
    for chunk in lane.chunks:
        stream[chunk] = finish_layer(layer, config, stream[chunk], attended[chunk].flatten(1))


def _emit(sink: Sink, lane: _Lane, name: str, stream: Tensor, dtype: torch.dtype) -> None:
    for chunk in lane.chunks:
        sink(lane.number, name, stream[chunk].to("cpu", dtype, copy=True))


def _layers(
    checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, resident: LayerCache | None
) -> Iterator[LayerWeights]:
    """The layers in order; while one is in use, a thread reads the next."""

    def load(index: int) -> LayerWeights:
        if resident is not None and index in resident.layers:
            return resident.layers[index]
        layer = pack_layer(checkpoint.layer(index, dtype, device))
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
