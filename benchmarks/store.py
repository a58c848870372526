"""What the store costs beside the disk itself: writing with hashing and commit, and ``verify --deep``, beside plain I/O.

    python -m benchmarks.store [--folder .] [--megabytes 512] [--shards 4] [--repeats 5]

Each figure is MB/s, the median of the repeats; the kinds take turns, so that the machine's drift meets all of them. A plain
write ends with fsync, as ours does. Both reads are of the same files, none of them in the page cache unless marked warm.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from blake3 import blake3

from artifacts.store import Store
from artifacts.verify import verify
from artifacts.writer import ArtifactWriter

CHUNK = 4 << 20  # as extraction hands states over: 2,048 tokens of a state of 1,024 in BF16


def forget_pages(paths: list[Path]) -> None:
    """Drop files from the page cache."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def pieces(size: int) -> list[memoryview]:
    """Random bytes in chunks; the same chunk is written again and again, which no step here can exploit."""
    chunk = memoryview(os.urandom(CHUNK))
    return [chunk] * (size // CHUNK)


def write_plainly(folder: Path, size: int, number: int) -> Path:
    """One file, written and synced."""
    path = folder / f"plain{number}"
    with open(path, "wb") as file:
        for piece in pieces(size):
            file.write(piece)
        os.fsync(file.fileno())
    return path


def write_shard(store: Store, size: int, number: int) -> str:
    """One artifact, hashed, synced and committed."""
    with store.workspace() as workspace:
        writer = ArtifactWriter("hidden_states", workspace)
        with writer.open("states.safetensors") as file:
            file.write(number.to_bytes(8, "little") + os.urandom(8))
            for piece in pieces(size):
                file.write(piece)
        return store.commit(writer.seal()).digest


def read_plainly(paths: list[Path]) -> None:
    """One file after the other, front to back."""
    buffer = memoryview(bytearray(CHUNK))
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def verify_deep(store: Store) -> None:
    """Every blob; nothing may be damaged."""
    assert list(verify(store, store.root / "state", True, lambda *_: None)) == []


def hash_only(size: int) -> None:
    """BLAKE3 on one thread, from memory."""
    hasher = blake3()
    for piece in pieces(size):
        hasher.update(piece)


def rate(size: int, work: Callable[[], object]) -> float:
    """MB/s of ``work`` over ``size`` bytes."""
    started = time.monotonic()
    work()
    return size / 1e6 / (time.monotonic() - started)


class Rates:
    """MB/s by name, and one repeat of everything."""

    def __init__(self, size: int, shards: int) -> None:
        self.size, self.shards = size, shards
        self.of: dict[str, list[float]] = {}

    def note(self, name: str, amount: int, work: Callable[[], object]) -> None:
        """Measure once."""
        self.of.setdefault(name, []).append(rate(amount, work))

    def repeat(self, folder: Path, plain_first: bool) -> None:
        """Write, then read, each plainly and by the store."""
        store = Store(folder / "store")
        for shard in range(self.shards):
            turns = [
                ("plain write + fsync", lambda n=shard: write_plainly(folder, self.size, n)),
                ("write + hash + commit", lambda n=shard: write_shard(store, self.size, n)),
            ]
            for name, work in turns if plain_first else reversed(turns):
                self.note(name, self.size, work)
        blobs = [path for blob in store.folders() for path in blob.iterdir()]
        total = self.size * self.shards
        reads: list[tuple[str, Callable[[], object]]] = [
            ("plain read", lambda: read_plainly(blobs)),
            ("verify --deep", lambda: verify_deep(store)),
        ]
        for name, read in reads if plain_first else reversed(reads):
            forget_pages(blobs)
            self.note(name, total, read)
        read_plainly(blobs)
        self.note("verify --deep, warm", total, lambda: verify_deep(store))
        self.note("BLAKE3 alone, one thread", self.size, lambda: hash_only(self.size))


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("."))
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args()
    size = (chosen.megabytes << 20) // CHUNK * CHUNK
    rates = Rates(size, chosen.shards)
    for repeat in range(chosen.repeats):
        with tempfile.TemporaryDirectory(dir=chosen.folder) as name:
            rates.repeat(Path(name), plain_first=repeat % 2 == 0)
    medians = {name: statistics.median(values) for name, values in rates.of.items()}
    floors = {"write + hash + commit": "plain write + fsync", "verify --deep": "plain read"}
    print(f"{'what':28} {'MB/s':>8} {'lowest':>8} {'highest':>8} {'ratio':>6}")
    for name, median in medians.items():
        ratio = f"{median / medians[floors[name]]:6.2f}" if name in floors else ""
        print(f"{name:28} {median:8,.0f} {min(rates.of[name]):8,.0f} {max(rates.of[name]):8,.0f} {ratio:>6}")


if __name__ == "__main__":
    main()
