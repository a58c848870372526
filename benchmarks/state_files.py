"""States on the disk as a stage leaves them: hashed while written, synced, out of the page cache."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from artifacts.writer import HashedFile
from kimi_adapters.lanes import ShardTokens
from kimi_adapters.tensor_file import TensorWriter

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
        sizes = [len(one.input_ids) for one in shards]
        self._writers = [
            TensorWriter(file, [(name, "BF16", (size, hidden)) for name in names])
            for file, size in zip(self._files, sizes, strict=True)
        ]
        self.digests: list[str] = []

    def sink(self, number: int, name: str, chunk: torch.Tensor) -> None:
        """What stream_states calls."""
        self._writers[number].write(name, chunk.view(torch.uint8).numpy())

    def close(self) -> None:
        """Syncs."""
        for writer, file, path in zip(self._writers, self._files, self._paths, strict=True):
            writer.close()
            self.digests.append(file.close())
            path.unlink()
