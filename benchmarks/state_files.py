"""States on the disk by what writes them in extraction: hashed, their statistics taken, synced, out of the page cache."""

from collections.abc import Sequence
from pathlib import Path

from artifacts.writer import HashedFile
from kimi_adapters.lanes import ShardTokens
from tasks.state_sink import StateSink


class Files:
    """The files of one pass's states; `close` gives their digests and removes them, for the disk is small."""

    def __init__(self, folder: Path, number: int, shards: Sequence[ShardTokens], names: Sequence[str], hidden: int):
        self._paths = [folder / f"states-{number}-{i}.safetensors" for i in range(len(shards))]
        self._files = [HashedFile(path) for path in self._paths]
        offsets = [one.offsets.numpy() for one in shards]
        self.sink = StateSink(self._files, offsets, names, hidden, "bfloat16")  # what stream_states calls
        self.digests: list[str] = []

    def close(self) -> None:
        """Syncs."""
        self.sink.close()
        for file, path in zip(self._files, self._paths, strict=True):
            self.digests.append(file.close())
            path.unlink()
