"""Packs on their way to the device: read by threads and copied while it computes, in order, a bounded number ahead."""

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from types import TracebackType
from typing import Self

import torch

from kimi_adapters.busy import Busy
from kimi_adapters.packing import Batch, PackedShards, Piece

Wanted = tuple[Sequence[Piece], tuple[int, ...]]  # a pack, and the seed of its noise
# A pack of K2.5's states is 235 MB at 4,096 tokens, and one thread copies some 5 GB/s from the page cache to pinned memory:
# 50 ms, where a step at 30k tokens a second takes 137.
READERS = 2
AHEAD = 2


class Prefetch:
    """The batches of `wanted`, one a `take`, float32 on `device`; the same bits as `PackedShards.load` gives on a CPU.

    On CUDA states travel as they are stored, from pinned memory on a stream of their own, and noise is drawn there (by the
    same seeds, other numbers). `waited`: seconds that the takes have waited for a read; `reading` counts those in which a
    thread read from the files, `read_bytes` what of states it read. UserError, at a take, or on CUDA at
    a `check`: a state that is not finite, with its sample.
    """

    def __init__(self, data: PackedShards, device: torch.device, wanted: Sequence[Wanted]):
        self.data, self.device = data, device
        self.waited = 0.0
        self.reading, self.read_bytes = Busy(), 0
        self._row_bytes = (len(data.layer_ids) + 1) * data.hidden_size * data.stored_dtype.itemsize
        self._wanted = iter(wanted)
        self._on_gpu = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self._on_gpu else None
        self._unchecked: list[tuple[Sequence[Piece], torch.Tensor]] = []
        self._readers = ThreadPoolExecutor(READERS if self._on_gpu else 1, "packs")
        self._coming: deque[tuple[Wanted, Future[Batch]]] = deque()

    def __enter__(self) -> Self:
        self._send_for(AHEAD)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._readers.shutdown(cancel_futures=True)

    def take(self) -> Batch:
        """The next batch."""
        (pack, seed), coming = self._coming.popleft()
        began = time.monotonic()
        batch = coming.result()
        self.waited += time.monotonic() - began
        self.read_bytes += sum(len(piece) for piece in pack) * self._row_bytes
        self._send_for(1)
        return self._finished_on_gpu(batch, pack, seed) if self._on_gpu else batch

    def check(self) -> None:
        """Read what the device found of the states taken since the last check; it waits for the device."""
        for pack, finite in self._unchecked:
            if not finite:
                self.data.load(pack)  # names the sample
        self._unchecked.clear()

    def _send_for(self, count: int) -> None:
        for wanted in islice(self._wanted, count):
            self._coming.append((wanted, self._readers.submit(self._read, wanted)))

    def _read(self, wanted: Wanted) -> Batch:
        """In a thread: on a CPU the whole batch; for CUDA its copy on the way."""
        if self._stream is None:
            with self.reading:
                return self.data.load(*wanted)
        with torch.cuda.stream(self._stream):  # and on its device, also for pinned memory: a thread begins on the first GPU
            with self.reading:
                host = self.data.read(wanted[0], self.data.stored_dtype, pinned=True)
            batch = {name: value.to(self.device, non_blocking=True) for name, value in host.items()}
            self._stream.synchronize()  # this thread's wait; the pinned buffers are free again after it
        return batch

    def _finished_on_gpu(self, batch: Batch, pack: Sequence[Piece], seed: Sequence[int]) -> Batch:
        for value in batch.values():
            value.record_stream(torch.cuda.current_stream(self.device))
        finished = self.data.finished(batch, seed)
        found = [torch.isfinite(finished[name]).all() for name in ("hidden_states", "verifier_last_hidden_states")]
        self._unchecked.append((pack, torch.stack(found).all()))
        return finished
