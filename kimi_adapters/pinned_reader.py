"""Stored tensors into an NVIDIA GPU's memory: threads read into a bounded ring of pinned buffers, copies go from there.

Pinned memory: BUFFERS · BUFFER_BYTES = 0.8 GB, whatever the layers' size.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from errors import UserError
from kimi_adapters.busy import Busy
from kimi_adapters.tensor_file import TensorFile
from kimi_adapters.weights import Checkpoint, torch_dtype

BUFFERS = 24
BUFFER_BYTES = 32 << 20
THREADS = 12

Stored = tuple[TensorFile, str]


@dataclass(frozen=True)
class _Buffer:
    """A pinned buffer; `copied` is the event after its last copy."""

    memory: Tensor
    copied: torch.cuda.Event


class PinnedReader:
    """Reads tensors of files into device memory; `stream` is the CUDA stream of the copies, `busy` the time spent on files."""

    def __init__(self, device: torch.device):
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self.busy = Busy()
        self._free: SimpleQueue[_Buffer] = SimpleQueue()
        for _ in range(BUFFERS):
            memory = torch.empty(BUFFER_BYTES, dtype=torch.uint8, pin_memory=True)
            self._free.put(_Buffer(memory, torch.cuda.Event()))
        self._threads = ThreadPoolExecutor(THREADS)

    def fill(self, target: Tensor, stored: Sequence[Stored]) -> None:
        """Fills a contiguous tensor on the device by the bytes of stored tensors, one after another.

        Returns when all is read and every copy is on `stream`; what follows on that stream sees the values.
        """
        into = target.reshape(-1).view(torch.uint8)
        work = [self._threads.submit(self._move, into, start, parts) for start, parts in _batches(stored)]
        for one in work:
            one.result()

    def _move(self, into: Tensor, start: int, parts: Sequence[tuple[TensorFile, str, int, int]]) -> None:
        buffer = self._free.get()
        try:
            buffer.copied.synchronize()
            view, size = buffer.memory.numpy().data, 0
            with self.busy:
                for file, name, first, length in parts:
                    file.read_part(name, view[size : size + length], first)
                    size += length
            with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
                into[start : start + size].copy_(buffer.memory[:size], non_blocking=True)
                buffer.copied.record(self.stream)
        finally:
            self._free.put(buffer)

    def close(self) -> None:
        """Ends the threads once what they read has been copied."""
        self._threads.shutdown()
        self.stream.synchronize()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _batches(stored: Sequence[Stored]) -> Iterator[tuple[int, list[tuple[TensorFile, str, int, int]]]]:
    """The stored bytes cut to buffers: where each batch starts, and (file, name, first byte, bytes) of its parts."""
    parts: list[tuple[TensorFile, str, int, int]] = []
    start = size = 0
    for file, name in stored:
        entry, first = file.entry(name), 0
        while first < entry.end - entry.start:
            length = min(entry.end - entry.start - first, BUFFER_BYTES - size)
            parts.append((file, name, first, length))
            first, size = first + length, size + length
            if size == BUFFER_BYTES:
                yield start, parts
                start, size, parts = start + size, 0, []
    if parts:
        yield start, parts


class PinnedCheckpoint(Checkpoint):
    """An open checkpoint whose tensors come to the device through a PinnedReader, in order with its stream.

    To be called with that stream current. `room` holds large tensors for the next layer of the same shapes; None
    keeps none. Values that `check_values` found right are not read again.
    """

    def __init__(self, source: Checkpoint, reader: PinnedReader):
        self.__dict__.update(source.__dict__)
        self._source = source
        self._reader = reader
        self.room: dict[tuple[str, int], Tensor] | None = None
        self._turn = 0
        self._checked: set[str] = set()

    def start_layer(self, room: dict[tuple[str, int], Tensor] | None) -> None:
        """Says where the large tensors of the layer that is read next may lie."""
        self.room, self._turn = room, 0

    def location(self, name: str) -> Stored:
        """As the checkpoint that it stands for has it."""
        return self._source.location(name)

    def read(self, name: str, dtype: torch.dtype | None = None, device: torch.device | str = "cpu") -> Tensor:
        """As Checkpoint.read."""
        if torch.device(device).type != "cuda":
            return super().read(name, dtype, device)
        file, tensor_name = self.location(name)
        entry = file.entry(tensor_name)
        tensor = torch.empty(entry.shape, dtype=torch_dtype(entry.dtype), device=device)
        if tensor.numel():
            self._reader.fill(tensor, [(file, tensor_name)])
        return tensor.to(dtype or tensor.dtype)

    def read_stacked(
        self, names: Sequence[Sequence[str]], dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
    ) -> Tensor:
        """As Checkpoint.read_stacked."""
        if torch.device(device).type != "cuda":
            return super().read_stacked(names, dtype, device)
        stored = [self.location(name) for parts in names for name in parts]
        entry = stored[0][0].entry(stored[0][1])
        for file, tensor_name in stored:
            if file.entry(tensor_name).dtype != entry.dtype:
                raise UserError(f"{file.path} has {tensor_name!r} in another dtype than its neighbours; restore it.")
        shape = (len(names), len(names[0]) * entry.shape[0], entry.shape[1])
        stack = self._room_for(shape, torch_dtype(entry.dtype), device)
        self._reader.fill(stack, stored)
        return stack.to(dtype or stack.dtype)

    def check_values(self, name: str, expected: Sequence[int]) -> None:
        """As Checkpoint.check_values."""
        if name not in self._checked:
            super().check_values(name, expected)
            self._checked.add(name)

    def _room_for(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> Tensor:
        key = (f"{shape} {dtype}", self._turn)
        self._turn += 1
        if self.room is None:
            return torch.empty(shape, dtype=dtype, device=device)
        if key not in self.room:
            self.room[key] = torch.empty(shape, dtype=dtype, device=device)
        return self.room[key]
