"""States on the disk as extraction leaves them: hashed while written, their statistics taken, synced, out of the page cache."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from artifacts.writer import HashedFile
from kimi_adapters.lanes import ShardTokens
from tasks.state_sink import StateSink

SYNC_BYTES = 512 << 20


class SyncedFile(HashedFile):
    """A hashed file whose pages go to the disk and out of the page cache as they come, on a thread beside."""

    _synced = 0

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._beside = ThreadPoolExecutor(1)

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """As HashedFile.write."""
        written = super().write(data)
        if self.size - self._synced >= SYNC_BYTES:
            self._file.flush()
            self._beside.submit(self._sync)
            self._synced = self.size
        return written

    def _sync(self) -> None:
        os.fdatasync(self._file.fileno())
        os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> str:
        """As HashedFile.close."""
        self._beside.shutdown()
        return super().close()


class Files:
    """The files of one pass's states; `close` gives their digests and removes them, for the disk is small."""

    def __init__(self, folder: Path, number: int, shards: Sequence[ShardTokens], names: Sequence[str], hidden: int):
        self._paths = [folder / f"states-{number}-{i}.safetensors" for i in range(len(shards))]
        self._files = [SyncedFile(path) for path in self._paths]
        offsets = [one.offsets.numpy() for one in shards]
        self.sink = StateSink(self._files, offsets, names, hidden, "bfloat16")  # what stream_states calls
        self.digests: list[str] = []

    def close(self) -> None:
        """Syncs."""
        self.sink.close()
        for file, path in zip(self._files, self._paths, strict=True):
            self.digests.append(file.close())
            path.unlink()
