"""The sink of a pass: whatever the number of threads, the same file and the same statistics."""

from pathlib import Path

import numpy as np
import pytest
import torch

from artifacts.writer import HashedFile
from tasks.state_sink import StateSink

NAMES = ("layer.1", "last")


def taken(folder: Path, threads: int, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[dict[str, np.ndarray]]]:
    """Digests and statistics of two shards whose rows come by turns, in chunks of one memory that is used again."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    offsets = [np.array([0, 4, 9]), np.array([0, 3])]
    files = [HashedFile(folder / f"{threads}-{i}") for i in range(2)]
    sink, source = StateSink(files, offsets, NAMES, 6, "bfloat16"), torch.Generator().manual_seed(0)
    memory = torch.empty(4, 6, dtype=torch.bfloat16)
    for name in NAMES:
        for shard, rows in ((0, 4), (0, 4), (1, 2), (0, 1), (1, 1)):
            chunk = memory[:rows].copy_(torch.randn(rows, 6, generator=source))
            sink(shard, name, chunk)
    sink.close()
    return [file.close() for file in files], [stats.arrays for stats in sink.stats]


def test_threads_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests, stats = taken(tmp_path, 1, monkeypatch)
    for threads in (2, 4, 7):
        others, theirs = taken(tmp_path, threads, monkeypatch)
        assert others == digests
        for mine, other in zip(stats, theirs, strict=True):
            assert mine.keys() == other.keys() and all(np.array_equal(mine[name], other[name]) for name in mine)


def test_missing_rows_are_told(tmp_path: Path) -> None:
    sink = StateSink([HashedFile(tmp_path / "file")], [np.array([0, 2])], NAMES, 6, "bfloat16")
    sink(0, "layer.1", torch.zeros(2, 6, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="last"):
        sink.close()
