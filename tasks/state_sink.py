"""Where the hidden states of a pass go: into a file a shard, and past its statistics on the way."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from kimi_adapters.tensor_file import TensorWriter
from tasks.state_stats import StateStats, row_norms

_THREADS = 4
_STORED = {"bfloat16": "BF16", "float32": "F32"}


class StateSink:
    """What ``stream_states`` calls with a shard's number, a state's name and its next rows [k, H].

    ``files`` are one a shard, open for writing; ``offsets`` I64 [n + 1] the bounds of its samples; ``dtype`` that of the rows.
    Statistics are taken beside the hashing and writing, by up to ``_THREADS`` threads of torch's share of the processor: one
    takes 0.7 GB/s, and a pass of few layers leaves its states faster than that.
    """

    def __init__(
        self, files: Sequence[Any], offsets: Sequence[np.ndarray], names: Sequence[str], hidden: int, dtype: str
    ) -> None:
        self.stats = [StateStats(bounds) for bounds in offsets]
        self._writers = [
            TensorWriter(file, [(name, _STORED[dtype], (int(bounds[-1]), hidden)) for name in names])
            for file, bounds in zip(files, offsets, strict=True)
        ]
        self._threads = min(_THREADS, torch.get_num_threads())
        self._beside = ThreadPoolExecutor(self._threads, "statistics")

    def __call__(self, shard: int, name: str, chunk: torch.Tensor) -> None:
        parts = [self._beside.submit(row_norms, part) for part in chunk.tensor_split(self._threads) if len(part)]
        self._writers[shard].write(name, chunk.contiguous().view(torch.uint8).numpy())
        self.stats[shard].add(name, chunk, torch.cat([part.result() for part in parts]))

    def close(self) -> None:
        """After the last rows; ``ValueError`` where some are missing."""
        self._beside.shutdown()
        for writer in self._writers:
            writer.close()
