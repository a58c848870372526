"""Cuts samples into token shards where a shard has reached its tokens."""

from collections.abc import Callable

from artifacts.writer import ArtifactWriter, Sealed
from tasks.conversations import Gap
from tasks.samples import Sample
from tasks.shard_writer import write_shard


class ShardCutter:
    """Collects samples and writes a shard and its masks whenever ``shard_tokens`` is reached, gaps counted in.

    ``outputs`` are ``ids.<n>`` and ``masks.<n>``; ``tokens`` is what was written.
    """

    def __init__(self, new_writer: Callable[[str], ArtifactWriter], shard_tokens: int) -> None:
        self._new_writer, self._shard_tokens = new_writer, shard_tokens
        self._waiting: list[Sample] = []
        self._size = 0
        self.outputs: dict[str, Sealed] = {}
        self.tokens = 0

    def add(self, one: Sample | Gap) -> None:
        """The next sample, or the place of a forgotten one."""
        if isinstance(one, Gap):
            self._size += one.tokens
        else:
            self._waiting.append(one)
            self._size += len(one.ids)
        if self._size >= self._shard_tokens:
            self.close()

    def close(self) -> None:
        """Write what waits; a shard of which everything was forgotten is none."""
        if self._waiting:
            number = len(self.outputs) // 2
            self.outputs[f"ids.{number}"], self.outputs[f"masks.{number}"] = write_shard(self._new_writer, self._waiting)
            self.tokens += sum(len(sample.ids) for sample in self._waiting)
        self._waiting, self._size = [], 0
