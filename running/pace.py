"""The passes of one host move together: weights larger than its memory are read from the disk once, not once a device.

The page cache is the ring of layers that all children share. Whoever is first at a layer reads it from the disk, the others
find its pages, and the last one drops them; nobody is more than AHEAD layers before the slowest, so AHEAD + 1 layers are in
memory. A child is a file with its place in it, which it alone writes, and a flock on that file, which the kernel takes from a
killed one: it is waited for no more. There is no leader and no process beside the children.

Weights that fit the memory stay in the page cache by themselves: then nobody waits and nothing is dropped.
"""

import fcntl
import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from running.memory import available_bytes

AHEAD = 2  # layers: the one that a child reads while another computes, and one more
FITTING = 0.9  # share of the available memory that weights may take and still be said to fit
_ROUND = 1 << 32  # a place is round · _ROUND + layer: eight bytes, written and read at once
_POLL = 0.01  # seconds between two looks at the others; a layer of K2.5 takes 0.4 s from memory and 6 s from a disk


def join(folder: Path) -> int:
    """A place among the passes of ``folder``: a locked descriptor, to be handed to the child and closed here.

    The child is waited for from now on. It begins with the others' round while that is at its first layers, else with the next.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f".{uuid.uuid4().hex}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    number, layer = divmod(max(_places(folder), default=0), _ROUND)
    _write(descriptor, (number if layer <= AHEAD else number + 1) * _ROUND)
    path.rename(folder / path.name[1:])
    return descriptor


class Pace:
    """A child's place: in a pass ``begin``, for each layer in turn ``wait``, the reading and ``took``; at last ``leave``."""

    def __init__(self, folder: Path, descriptor: int, available: Callable[[], int] = available_bytes) -> None:
        self._folder, self._descriptor, self._available = folder, descriptor, available
        self._round, self._layers, self._fits, self._left = _read(descriptor) // _ROUND, 0, True, False

    def begin(self, layers: int, weight_bytes: int) -> None:
        """A pass over so many layers, of so many bytes together; whether they fit the memory is decided here."""
        self._layers = layers
        self._fits = weight_bytes <= FITTING * self._available()

    def wait(self, layer: int) -> None:
        """Wait until no other child is more than AHEAD layers behind ``layer``, which this one reads next."""
        least = self._round * _ROUND + layer - AHEAD
        while not (self._fits or self._left) and any(place < least for place in self._others()):
            time.sleep(_POLL)

    def took(self, layer: int) -> bool:
        """Say that ``layer`` has been read; whether all others have read it too, so that nobody needs its pages."""
        if self._left:
            return False
        if layer + 1 == self._layers:
            self._round += 1
        place = self._round * _ROUND + (layer + 1) % self._layers
        _write(self._descriptor, place)
        others = [] if self._fits else list(self._others())
        return bool(others) and min(others) >= place

    def leave(self) -> None:
        """There is no further pass, or none that reads."""
        self._left = True
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _others(self) -> Iterator[int]:
        return _places(self._folder, os.fstat(self._descriptor).st_ino)


def _places(folder: Path, but: int = -1) -> Iterator[int]:
    """The places of living children, but for the one whose file has that inode."""
    for entry in os.scandir(folder):
        if entry.name.startswith(".") or entry.inode() == but:
            continue
        descriptor = os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            yield _read(descriptor)
        finally:
            os.close(descriptor)


def _read(descriptor: int) -> int:
    return int.from_bytes(os.pread(descriptor, 8, 0), "little")


def _write(descriptor: int, place: int) -> None:
    os.pwrite(descriptor, place.to_bytes(8, "little"), 0)
