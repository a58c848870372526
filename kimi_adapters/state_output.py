"""States off an NVIDIA GPU: a copy on the device is taken at once, and a thread brings it out and gives it to a sink.

Memory: copies that wait, at most `held_bytes` on the device (2 · 7168 bytes a token and state of K2.5 in bf16); two
pinned buffers of ROWS rows on the host. Computing goes on meanwhile; it waits only when more than `held_bytes` wait.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from kimi_adapters.lanes import pieces
from kimi_adapters.waiting import Waiting

ROWS = 2048  # 29 MB of a K2.5 state in bf16

Sink = Callable[[int, str, Tensor], None]


class StateOutput:
    """Takes states by `emit`, hands chunks of up to ROWS rows to sinks in the order of emission, on one thread.

    A chunk is the sink's until it returns: the buffer is used again. What a sink raises comes out of the next `emit`
    or of `finish`. `waiting` adds up how long the device stood still for the output.
    """

    def __init__(self, device: torch.device, held_bytes: int):
        self._device = device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        self._stream = torch.cuda.Stream(device)
        self._held_bytes = held_bytes
        self._held = 0
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._buffers: list[Tensor] = []
        self._thread = threading.Thread(target=self._run, name="states", daemon=True)
        self._thread.start()
        self.waiting = Waiting(device)

    def emit(self, sink: Sink, shard: int, name: str, stream: Tensor, dtype: torch.dtype) -> None:
        """Takes the states [T, hidden] as they are on the current stream, in `dtype`."""
        size = stream.numel() * dtype.itemsize
        with self._changed:
            if self._held and self._held + size > self._held_bytes:
                with self.waiting:
                    self._changed.wait_for(lambda: self._error or not self._held or self._held + size <= self._held_bytes)
            self._check()
            self._held += size
        taken = stream.to(dtype, copy=True)
        after = torch.cuda.Event()
        after.record(torch.cuda.current_stream(self._device))
        self._queue.put(lambda: self._bring(sink, shard, name, taken, after))

    def then(self, what: Callable[[], Any]) -> None:
        """Calls `what` on the thread once everything emitted so far has been through its sink."""
        self._queue.put(what)

    def finish(self) -> None:
        """Waits until everything is through its sink."""
        done = threading.Event()
        self._queue.put(done.set)
        with self.waiting:
            done.wait()
        self._check()

    def close(self) -> None:
        """Ends the thread after what it has."""
        self._queue.put(None)
        self._thread.join()

    def _check(self) -> None:
        if self._error:
            raise self._error

    def _run(self) -> None:
        torch.cuda.set_device(self._device)
        while (work := self._queue.get()) is not None:
            try:
                if self._error is None or getattr(work, "__self__", None).__class__ is threading.Event:
                    work()
            except BaseException as error:  # noqa: BLE001 - raised where the states come from
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
            del work

    def _bring(self, sink: Sink, shard: int, name: str, taken: Tensor, after: torch.cuda.Event) -> None:
        """Copies a chunk out while the one before is in its sink."""
        rows = pieces(0, len(taken), ROWS)
        self._stream.wait_event(after)
        arriving = [self._start(taken, rows[0], 0)] if rows else []
        for number in range(len(rows)):
            chunk, copied = arriving.pop()
            if number + 1 < len(rows):
                arriving.append(self._start(taken, rows[number + 1], (number + 1) % 2))
            copied.synchronize()
            sink(shard, name, chunk)
        with self._changed:
            self._held -= taken.numel() * taken.element_size()
            self._changed.notify_all()

    def _start(self, taken: Tensor, rows: slice, turn: int) -> tuple[Tensor, torch.cuda.Event]:
        size = ROWS * taken.shape[1]
        if len(self._buffers) < 2 or self._buffers[0].numel() != size or self._buffers[0].dtype != taken.dtype:
            self._buffers = [torch.empty(size, dtype=taken.dtype, pin_memory=True) for _ in range(2)]
        chunk = self._buffers[turn][: taken[rows].numel()].view_as(taken[rows])
        copied = torch.cuda.Event()
        with torch.cuda.stream(self._stream):
            chunk.copy_(taken[rows], non_blocking=True)
            copied.record(self._stream)
        return chunk, copied
