"""How many shards extraction takes through the layers together, and whether that fits: judged before anything runs.

No stage reaches this module: a pass's size is in no key. Neither torch nor a weight is read.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from artifacts.stage import Made, Node, Pending
from errors import UserError
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
_OPEN = 0.97  # share of the memory that a pass may take whose size is left open: a driver keeps some
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


def sized(
    settings: Settings, nodes: list[Node], hiding: Callable[[Node], int | None], memory: Callable[[], Memory | None]
) -> list[Node]:
    """The nodes with the size of their passes: as set, else the tokens that ``hiding`` gives, as far as they fit.

    ``memory`` is asked for verifiers of which it is known what a pass takes; of others one shard is a pass, unless it is set.
    """
    size = settings.running.shards_per_pass
    if size is None and (tokens := hiding(nodes[0]) if nodes else None):
        judged = _judged(settings, nodes, memory)
        size = judged.largest(tokens) if judged and judged.known else None
    return [replace(node, knobs={**node.knobs, "shards_per_pass": size or 1}) for node in nodes]


def check(settings: Settings, made: list[Made], memory: Callable[[], Memory | None]) -> None:
    """UserError when a pass over what a plan would run cannot fit, whatever else uses the devices."""
    missing = [one.node for one in made if one.outputs is None]
    if missing and (judged := _judged(settings, missing, memory)):
        judged.check(missing[0].knobs["shards_per_pass"])


def _judged(settings: Settings, nodes: list[Node], memory: Callable[[], Memory | None]) -> "_Judged | None":
    config = read_config(settings.verifier.directory) if settings.verifier.directory is not None else None
    there = memory() if isinstance(config, DeepseekConfig) else None
    return _Judged(settings, config, there, nodes) if isinstance(config, DeepseekConfig) and there else None


class _Judged:
    """Passes over nodes, by what they need of the memory there is."""

    def __init__(self, settings: Settings, config: DeepseekConfig, memory: Memory, nodes: list[Node]) -> None:
        self._settings, self._config, self._memory, self._layers = settings, config, memory, layer_bytes(config)
        self._shards = sorted((tokens for node in nodes for tokens in _shards(node, settings)), reverse=True)

    @property
    def known(self) -> bool:
        """Whether it is known what a pass takes on these devices."""
        bf16 = self._settings.hidden_states.compute_dtype == "bfloat16"
        return self._memory.capability is None or (self._memory.capability >= _FUSED and bf16)

    def largest(self, tokens: int) -> int:
        """The smallest pass that has so many tokens, or the largest one that fits."""
        size = max(1, min(math.ceil(tokens / self._settings.corpus.shard_tokens), len(self._shards)))
        while size > 1:
            try:
                self.check(size, _OPEN)
                return size
            except UserError:
                size -= 1
        return size

    def check(self, size: int, share: float = 1.0) -> None:
        """UserError when a pass of the ``size`` largest shards cannot fit that share of the memory."""
        shards, layers, memory = self._shards[:size], self._layers, self._memory
        there = int(memory.bytes * share)
        item = _ITEM[self._settings.hidden_states.compute_dtype]
        if memory.capability is None:
            children = max(1, min(memory.children, math.ceil(len(self._shards) / size)))
            each = there // children
            kept = layers.total if layers.total * max(1.0, item / 2) <= each / 2 else 2 * layers.largest
            whose = "are there" if children == 1 else f"are there for each of {children} children"
            check_host(self._config, shards, kept, item, each, whose)
        elif self.known:
            kept = layers.total if layers.total <= there / 2 else 2 * layers.largest
            longest = min(self._settings.corpus.max_length, max(shards, default=0))
            needed = need(self._config, CUDA, shards, longest, kept, HELD_BYTES)
            check_fits(needed, there, shards, "are on the smallest GPU")


def _shards(node: Node, settings: Settings) -> Iterator[int]:
    """The tokens of a shard, or of the shards that a source not yet cut is expected to give."""
    if not isinstance(node.inputs["ids"], Pending):
        yield node.tokens
        return
    whole, rest = divmod(node.tokens, settings.corpus.shard_tokens)
    yield from [settings.corpus.shard_tokens] * whole
    if rest:
        yield rest
