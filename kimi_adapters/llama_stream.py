"""The Llama forward over residual streams, as layer_stream takes it. Decoding does not see this module."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kimi_adapters.device_paths import free_bytes
from kimi_adapters.lanes import Lane
from kimi_adapters.llama import LayerWeights, finish_layer, pack_layer, project_qkv
from kimi_adapters.llama_config import LlamaConfig
from kimi_adapters.llama_rope import inverse_frequencies, rope_tables
from kimi_adapters.weights import Checkpoint


class LlamaForward:
    """What layer_stream asks of a family; see there."""

    def __init__(self, config: LlamaConfig, device: torch.device, dtype: torch.dtype):
        self.config = config
        self.device = device
        self.dtype = dtype

    def tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin of positions [T]."""
        return rope_tables(inverse_frequencies(self.config, self.device), positions.to(self.device))

    def check(self, checkpoint: Checkpoint, lanes: Sequence[Lane], kept: Mapping[int, Any] | None, held_bytes: int) -> bool:
        """As Family.check. What a pass needs is not known here: layers stay that take no more than half of the memory, as
        they are stored or in the dtype, whichever is wider."""
        stored = checkpoint.layer_bytes * max(1.0, self.dtype.itemsize / 2)
        return kept is not None and (bool(kept) or stored <= free_bytes(self.device) / 2)

    def load(self, checkpoint: Checkpoint, index: int) -> LayerWeights:
        """Layer `index` on the device."""
        return pack_layer(checkpoint.layer(index, self.dtype, self.device))

    def ready(self, layer: LayerWeights) -> LayerWeights:
        """Nothing is packed."""
        return layer

    def through(self, layer: LayerWeights, lane: Lane, stream: Tensor) -> None:
        """Replaces the residual stream [T, hidden] of a shard by what leaves the layer."""
        config, chunks = self.config, lane.chunks()
        q = stream.new_empty(lane.total, config.num_heads, config.head_dim)
        k = stream.new_empty(lane.total, config.num_kv_heads, config.head_dim)
        v = torch.empty_like(k)
        for chunk in chunks:
            q[chunk], k[chunk], v[chunk] = project_qkv(layer, config, stream[chunk], lane.cos[chunk], lane.sin[chunk])
        attended = torch.empty_like(q)
        for start, end in lane.samples:
            query, key, value = (part[start:end].transpose(0, 1)[None] for part in (q, k, v))
            grouped = config.num_heads != config.num_kv_heads
            out = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)
            attended[start:end] = out[0].transpose(0, 1)
        for chunk in chunks:
            stream[chunk] = finish_layer(layer, config, stream[chunk], attended[chunk].flatten(1))
