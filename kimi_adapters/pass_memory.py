"""Whether a pass fits the memory there is: beside all layers, which then stay from pass to pass, or beside two that come.

The plan and extraction both ask here, each with the memory that it knows of. Neither torch nor a weight is read.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from errors import UserError
from kimi_adapters.deepseek_config import DeepseekConfig
from kimi_adapters.deepseek_layout import layer_tensors
from kimi_adapters.tensor_file import ITEM_BYTES

RESERVE = 1.08  # what the allocator loses between blocks, and CUDA's own gigabyte


@dataclass(frozen=True)
class Need:
    """Bytes: `layers` (as they are held, and unpacked), `streams` (streams and positions), `output`, `work` (the largest of
    what takes turns: attention, products, unpacking)."""

    layers: int
    streams: int
    output: int
    work: int

    @property
    def total(self) -> int:
        """With what the allocator loses."""
        return int((self.layers + self.streams + self.output + self.work) * RESERVE)


@dataclass(frozen=True)
class LayerBytes:
    """Layers as they are held: all together, and the largest."""

    total: int
    largest: int


def layer_bytes(config: DeepseekConfig, item: int = 2) -> LayerBytes:
    """The layers' bytes by the configuration: weights that are packed as they are stored, others of `item` bytes."""
    dense = min(config.first_dense_layers, config.num_layers)
    kinds = {0: dense, dense: config.num_layers - dense}  # the first layer of a kind, and how many are alike
    sizes = [(_bytes_of(config, first, item), count) for first, count in kinds.items() if count]
    return LayerBytes(sum(size * count for size, count in sizes), max(size for size, _ in sizes))


def _bytes_of(config: DeepseekConfig, index: int, item: int) -> int:
    tensors = layer_tensors(config, index).items()
    return sum(math.prod(one.shape) * (ITEM_BYTES[one.dtypes[0]] if ".weight_" in name else item) for name, one in tensors)


@dataclass(frozen=True)
class Room:
    """Bytes that a pass may take of a `kind` of memory ("device" or "host"); they `are` free, or somebody's."""

    bytes: int
    kind: str
    are: str = "are free"


class PassMemory:
    """Passes over the largest of some shards.

    `needs` tells what a pass over shards of those tokens needs with so many bytes of layers. Layers stay only where they
    `may_stay`, take no more than half of the room, and leave enough of it to the pass.
    """

    def __init__(
        self, needs: Callable[[Sequence[int], int], Need], layers: LayerBytes, shards: Sequence[int], may_stay: bool = True
    ) -> None:
        self._needs, self._layers, self._may_stay = needs, layers, may_stay
        self._shards = sorted(shards, reverse=True)

    def stay(self, size: int, free: int) -> bool:
        """Whether all layers stay beside a pass of `size` shards."""
        layers = self._layers.total
        return self._may_stay and layers <= free / 2 and self._needs(self._shards[:size], layers).total <= free

    def need(self, size: int, free: int) -> Need:
        """What a pass of `size` shards needs, which has all layers beside it or two."""
        layers = self._layers
        here = layers.total if self.stay(size, free) else min(layers.total, 2 * layers.largest)
        return self._needs(self._shards[:size], here)

    def fits(self, size: int, free: int) -> bool:
        """Whether a pass of `size` shards does with `free` bytes."""
        return self.need(size, free).total <= free

    def check(self, size: int, room: Callable[[int], Room]) -> None:
        """UserError when a pass of `size` shards does not do with the room for it; it says how many would fit."""
        there = room(size)
        if self.fits(size, there.bytes):
            return
        fit = next((fewer for fewer in range(size - 1, 0, -1) if self.fits(fewer, room(fewer).bytes)), 0)
        shards, needed = self._shards[:size], _gigabytes(self.need(size, there.bytes).total)
        raise UserError(
            f"a pass over {sum(shards):,} tokens in {len(shards)} shards needs {needed} of {there.kind} memory and "
            f"{_gigabytes(there.bytes)} {there.are}; {self._remedy(fit, there)}."
        )

    def _remedy(self, fit: int, there: Room) -> str:
        if fit:
            return f"set running.shards_per_pass to {fit}"
        alone = self.need(1, there.bytes)
        if there.kind == "device":
            return f"give a device with {alone.total:,} bytes, or smaller shards"
        layers = _gigabytes(int(alone.layers * RESERVE))
        return f"one shard needs {_gigabytes(alone.total)}, {layers} of it layers: lower running.cpu_slots, or extract on a GPU"


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e9:.3g} GB"
