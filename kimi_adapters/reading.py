"""How the layers of one pass are read: at whose pace, how long it takes, and when a host needs their pages no more."""

import os
import time
from collections.abc import Callable
from typing import Any, Protocol, Self

from kimi_adapters.tensor_names import layer_of
from kimi_adapters.transport import Loads
from kimi_adapters.weights import Checkpoint

Range = tuple[str, int, int]


class Pace(Protocol):
    """What keeps several processes that read the same layers together."""

    def wait(self, layer: int) -> None:
        """Returns when this process may read a layer."""
        ...

    def took(self, layer: int) -> bool:
        """Says that it has been read; whether nobody needs its pages any more."""
        ...

    def leave(self) -> None:
        """This process reads no more."""
        ...


class Reading:
    """Stands before a family's `load` for one pass.

    `layers` that were read and the `seconds` it took by `clock` (a transport's `read_clock`), without those spent on
    waiting for other processes.
    """

    def __init__(self, pace: Pace | None = None, clock: Callable[[], float] = time.monotonic):
        self._pace, self._clock = pace, clock
        self._family: Loads | None = None
        self.layers = 0
        self.seconds = 0.0

    def through(self, family: Loads, kept: bool) -> Self:
        """This reading, of a family's layers. Layers that are `kept` on the device are read in no later pass."""
        self._family = family
        if kept and self._pace:
            self._pace.leave()
        return self

    def load(self, checkpoint: Checkpoint, index: int) -> Any:
        """As Loads.load."""
        assert self._family is not None
        if self._pace:
            self._pace.wait(index)
        began = self._clock()
        layer = self._family.load(checkpoint, index)
        self.seconds += self._clock() - began
        self.layers += 1
        if self._pace and self._pace.took(index):
            drop_pages(layer_ranges(checkpoint, index))
        return layer


def layer_ranges(checkpoint: Checkpoint, index: int) -> list[Range]:
    """Where a layer lies: files' paths with first and last byte, neighbours joined."""
    found = []
    for name in checkpoint.names:
        if layer_of(name) == index:
            file, stored = checkpoint.location(name)
            entry = file.entry(stored)
            found.append((str(file.path), entry.start, entry.end))
    return _joined(sorted(found))


def _joined(ranges: list[Range]) -> list[Range]:
    joined: list[Range] = []
    for path, start, end in ranges:
        if joined and joined[-1][0] == path and joined[-1][2] == start:
            joined[-1] = (path, joined[-1][1], end)
        else:
            joined.append((path, start, end))
    return joined


def drop_pages(ranges: list[Range]) -> None:
    """Lets the page cache forget these bytes of files."""
    for path, start, end in ranges:
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), start, end - start, os.POSIX_FADV_DONTNEED)
