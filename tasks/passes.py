"""How many shards extraction takes through the layers together, and whether that fits: judged before anything runs.

No stage reaches this module: a pass's size is in no key. Neither torch nor a weight is read.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from artifacts.stage import Made, Node, Pending
from kimi_adapters import device_memory, plain_memory
from kimi_adapters.chunk_sizes import CPU, CUDA
from kimi_adapters.config import read_config
from kimi_adapters.deepseek_config import DeepseekConfig
from kimi_adapters.device_memory import HELD_BYTES
from kimi_adapters.pass_memory import Need, PassMemory, Room, layer_bytes
from running.devices import Memory
from tasks.settings import Settings

_FUSED = 9.0  # compute capability of GPUs from which on device_memory's arithmetic holds in bf16, and plain_memory's below
_OPEN = 0.97  # share of the memory that a pass may take whose size is left open: a driver keeps some
_ITEM = {"bfloat16": 2, "float32": 4}


def sized(
    settings: Settings, nodes: list[Node], hiding: Callable[[Node], int | None], memory: Callable[[], Memory | None]
) -> list[Node]:
    """The nodes with the size of their passes: as set, else the tokens that ``hiding`` gives, as far as they fit.

    ``memory`` is asked for verifiers of which it is known what a pass takes; of others one shard is a pass, unless it is set.
    """
    size = settings.running.shards_per_pass
    if size is None and (tokens := hiding(nodes[0]) if nodes else None):
        judged = _judged(settings, nodes, memory)
        size = judged.largest(tokens) if judged else None
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
        self._settings, self._memory = settings, memory
        shards = [tokens for node in nodes for tokens in _shards(node, settings)]
        self._count, longest, capability = len(shards), settings.corpus.max_length, memory.capability
        item = _ITEM[settings.hidden_states.compute_dtype]
        sizes, held = (CPU, 0) if capability is None else (CUDA, HELD_BYTES)

        def needs(shards: Sequence[int], layers: int) -> Need:
            if capability is not None and capability >= _FUSED and item == 2:
                return device_memory.need(config, sizes, shards, longest, layers, held)
            return plain_memory.need(config, sizes, shards, longest, layers, held, item)

        self._passes = PassMemory(needs, layer_bytes(config, item), shards)

    def largest(self, tokens: int) -> int:
        """The smallest pass that has so many tokens, or the largest one that fits."""
        size = max(1, min(math.ceil(tokens / self._settings.corpus.shard_tokens), self._count))
        return next((fewer for fewer in range(size, 1, -1) if self._passes.fits(fewer, self._room(fewer, _OPEN).bytes)), 1)

    def check(self, size: int) -> None:
        """UserError when a pass of the ``size`` largest shards cannot fit the memory."""
        self._passes.check(size, self._room)

    def _room(self, size: int, share: float = 1.0) -> Room:
        """That share of the smallest GPU's memory; of the host's, what each child gets that has a pass of the size."""
        there = int(self._memory.bytes * share)
        if self._memory.capability is not None:
            return Room(there, "device", "are on the smallest GPU")
        children = max(1, min(self._memory.children, math.ceil(self._count / size)))
        return Room(there // children, "host", "are there" if children == 1 else f"are there for each of {children} children")


def _shards(node: Node, settings: Settings) -> Iterator[int]:
    """The tokens of a shard, or of the shards that a source not yet cut is expected to give."""
    if not isinstance(node.inputs["ids"], Pending):
        yield node.tokens
        return
    whole, rest = divmod(node.tokens, settings.corpus.shard_tokens)
    yield from [settings.corpus.shard_tokens] * whole
    if rest:
        yield rest
