"""How many shards extraction takes through the layers together, and whether that fits: judged before anything runs.

No stage reaches this module: a pass's size is in no key. Neither torch nor a weight is read.
"""

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from artifacts.stage import Node, Pending
from kimi_adapters.chunk_sizes import CUDA
from kimi_adapters.config import read_config
from kimi_adapters.deepseek_config import DeepseekConfig
from kimi_adapters.deepseek_layout import layer_tensors
from kimi_adapters.device_memory import HELD_BYTES, check_fits, need
from kimi_adapters.host_memory import check_host
from kimi_adapters.tensor_file import ITEM_BYTES
from running.devices import Memory
from tasks.settings import Settings

_FUSED = 9.0  # compute capability of GPUs on which device_memory's arithmetic holds
_ITEM = {"bfloat16": 2, "float32": 4}


@dataclass(frozen=True)
class LayerBytes:
    """Layers as they are stored: all together, and the largest."""

    total: int
    largest: int


def layer_bytes(config: DeepseekConfig) -> LayerBytes:
    """The layers' bytes by the configuration, weights that are not packed in 16 bits."""
    dense = min(config.first_dense_layers, config.num_layers)
    kinds = {0: dense, dense: config.num_layers - dense}  # the first layer of a kind, and how many are alike
    sizes = [(_bytes_of(config, first), count) for first, count in kinds.items() if count]
    return LayerBytes(sum(size * count for size, count in sizes), max(size for size, _ in sizes))


def _bytes_of(config: DeepseekConfig, index: int) -> int:
    return sum(math.prod(one.shape) * ITEM_BYTES[one.dtypes[0]] for one in layer_tensors(config, index).values())


def sized(settings: Settings, nodes: list[Node], memory: Callable[[], Memory | None]) -> list[Node]:
    """The nodes with the size of their passes.

    ``memory`` is asked for verifiers of which it is known what a pass takes. UserError when a pass fits none of it.
    """
    size = settings.running.shards_per_pass
    if nodes and settings.verifier.directory is not None:
        config = read_config(settings.verifier.directory)
        found = memory() if isinstance(config, DeepseekConfig) else None
        if found and isinstance(config, DeepseekConfig):
            shards = heapq.nlargest(size, (tokens for node in nodes for tokens in _shards(node, settings)))
            check(settings, config, shards, found, len(nodes))
    return [replace(node, knobs={**node.knobs, "shards_per_pass": size}) for node in nodes]


def check(settings: Settings, config: DeepseekConfig, shards: Sequence[int], memory: Memory, nodes: int) -> None:
    """UserError when a pass over shards of these tokens cannot fit, whatever else uses the devices."""
    item, layers = _ITEM[settings.hidden_states.compute_dtype], layer_bytes(config)
    if memory.capability is None:
        children = min(memory.children, math.ceil(nodes / max(1, len(shards))))
        each = memory.bytes // children
        kept = layers.total if layers.total * max(1.0, item / 2) <= each / 2 else 2 * layers.largest
        whose = "are there" if children == 1 else f"are there for each of {children} children"
        check_host(config, list(shards), kept, item, each, whose)
    elif memory.capability >= _FUSED and item == 2:
        kept = layers.total if layers.total <= memory.bytes / 2 else 2 * layers.largest
        longest = min(settings.corpus.max_length, max(shards, default=0))
        check_fits(need(config, CUDA, shards, longest, kept, HELD_BYTES), memory.bytes, shards, "are on the smallest GPU")


def _shards(node: Node, settings: Settings) -> Iterator[int]:
    """The tokens of a shard, or of the shards that a source not yet cut is expected to give."""
    if not isinstance(node.inputs["ids"], Pending):
        yield node.tokens
        return
    whole, rest = divmod(node.tokens, settings.corpus.shard_tokens)
    yield from [settings.corpus.shard_tokens] * whole
    if rest:
        yield rest
