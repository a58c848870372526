"""Safetensors files, read through `open()` and written as a stream: no torch, no whole file in memory.

The format is eight bytes (little-endian header length), a JSON header of names, dtypes, shapes and offsets, and
the tensors' bytes: https://github.com/huggingface/safetensors#format.
"""

import json
import math
import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

from errors import UserError

ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip
NUMPY_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1",
    "BOOL": "?",
}  # fmt: skip
HEADER_LIMIT = 100_000_000
HEADER_ALIGNMENT = 8


class Writable(Protocol):
    """What a writer needs of a file; it may hash what passes through."""

    def write(self, data: bytes | memoryview, /) -> Any: ...


# Opens a new file of an output by its name; leaving its context closes it.
OpenOutput = Callable[[str], AbstractContextManager[Writable]]


@dataclass(frozen=True)
class TensorEntry:
    """Where one tensor lies: `start` and `end` are byte offsets from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class TensorFile:
    """A safetensors file, checked at opening: a truncated or malformed one is a UserError.

    `entries` keeps the header's order. Bytes come either as a view of the mapped file (`bytes`) or copied into
    memory of the caller's (`read_into`, which threads may call at once).
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        try:
            self._file = open(self.path, "rb")  # noqa: SIM115 - lives as long as this object
        except OSError as error:
            raise UserError(f"{self.path} cannot be opened ({error.strerror}); check the path.") from error
        try:
            self.metadata, self.entries = self._read_header()
            self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        except BaseException:
            self._file.close()
            raise

    def _read_header(self) -> tuple[dict[str, str], dict[str, TensorEntry]]:
        size = os.fstat(self._file.fileno()).st_size
        length = int.from_bytes(self._file.read(8), "little")
        if size < 8 or length > min(HEADER_LIMIT, size - 8):
            raise self._malformed(f"its {size} bytes do not hold the header it announces")
        try:
            header: dict[str, Any] = json.loads(self._file.read(length))
            metadata = header.pop("__metadata__", {})
            entries = {name: _parse_entry(item, 8 + length) for name, item in header.items()}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise self._malformed("its header is not what the format asks for") from error
        position = 8 + length
        for entry in sorted(entries.values(), key=lambda entry: (entry.start, entry.end)):
            if entry.start != position or entry.end - entry.start != _byte_count(entry.dtype, entry.shape):
                raise self._malformed("its tensors do not lie end to end")
            position = entry.end
        if position != size:
            raise self._malformed(f"it has {size} bytes where its header promises {position}")
        return metadata, entries

    def _malformed(self, why: str) -> UserError:
        return UserError(f"{self.path} is not a whole safetensors file: {why}; restore or make it again.")

    def entry(self, name: str) -> TensorEntry:
        """The entry of a tensor; UserError when the file has none of that name."""
        if name not in self.entries:
            raise UserError(f"{self.path} has no tensor {name!r}; it holds {', '.join(list(self.entries)[:5])}…")
        return self.entries[name]

    def bytes(self, name: str) -> memoryview:
        """The tensor's bytes as a read-only view of the mapped file, alive while the file is open."""
        entry = self.entry(name)
        return memoryview(self._map)[entry.start : entry.end]

    def read_into(self, name: str, buffer: memoryview) -> None:
        """Fills a writable buffer of exactly the tensor's size."""
        entry = self.entry(name)
        target = buffer.cast("B")
        if len(target) != entry.end - entry.start:
            raise ValueError(f"{name}: a buffer of {len(target)} bytes for {entry.end - entry.start}")
        self._read(target, entry.start)

    def read_part(self, name: str, buffer: memoryview, start: int) -> None:
        """Fills a writable buffer from byte `start` of the tensor on; ValueError past its end."""
        entry = self.entry(name)
        target = buffer.cast("B")
        if start < 0 or entry.start + start + len(target) > entry.end:
            raise ValueError(f"{name}: bytes {start} to {start + len(target)} of {entry.end - entry.start}")
        self._read(target, entry.start + start)

    def _read(self, target: memoryview, position: int) -> None:
        done = 0
        while done < len(target):
            count = os.preadv(self._file.fileno(), [target[done:]], position + done)
            if count == 0:
                raise self._malformed("it ended while it was read")
            done += count

    def close(self) -> None:
        """Closes the file. The mapping goes with its last view."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class TensorWriter:
    """Writes a safetensors file front to back: the header at once, then each tensor in the declared order.

    Parameters: `entries` is (name, dtype, shape) in order; `metadata` goes into the header (transformers wants
    {"format": "pt"} of a model). `close` raises ValueError unless every declared byte came.
    """

    def __init__(
        self,
        file: Writable,
        entries: Sequence[tuple[str, str, Sequence[int]]],
        metadata: Mapping[str, str] | None = None,
    ):
        self._file = file
        self._pending = [(name, _byte_count(dtype, shape)) for name, dtype, shape in entries]
        self._pending.reverse()
        header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
        offset = 0
        for name, dtype, shape in entries:
            end = offset + _byte_count(dtype, shape)
            if name in header:
                raise ValueError(f"tensor {name!r} is declared twice")
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
            offset = end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % HEADER_ALIGNMENT)
        file.write(memoryview(len(text).to_bytes(8, "little") + text))

    def write(self, name: str, data: Any) -> None:
        """Appends bytes of tensor `name` (any C-contiguous buffer); a tensor may come in several pieces."""
        view = memoryview(data)
        if view.nbytes == 0:
            return
        self._drop_finished()
        if not self._pending or self._pending[-1][0] != name:
            expected = self._pending[-1][0] if self._pending else "nothing more"
            raise ValueError(f"bytes of {name!r} came where {expected!r} was expected")
        left = self._pending[-1][1] - view.nbytes
        if left < 0:
            raise ValueError(f"{name!r} was given {-left} bytes too many")
        self._pending[-1] = (name, left)
        self._file.write(view.cast("B"))

    def close(self) -> None:
        """Checks that all bytes came; the file itself stays open, it is the caller's."""
        self._drop_finished()
        if self._pending:
            name, left = self._pending[-1]
            raise ValueError(f"{name!r} lacks {left} bytes")

    def _drop_finished(self) -> None:
        while self._pending and self._pending[-1][1] == 0:
            self._pending.pop()


def read_array(file: TensorFile, name: str) -> np.ndarray:
    """A tensor as a read-only NumPy array over the mapped file; BF16 and float8 have no NumPy dtype: ValueError."""
    entry = file.entry(name)
    if entry.dtype not in NUMPY_DTYPES:
        raise ValueError(f"{name}: NumPy has no {entry.dtype}")
    return np.frombuffer(file.bytes(name), dtype=NUMPY_DTYPES[entry.dtype]).reshape(entry.shape)


def _parse_entry(item: Mapping[str, Any], data_start: int) -> TensorEntry:
    dtype, shape, (start, end) = item["dtype"], tuple(item["shape"]), item["data_offsets"]
    if dtype not in ITEM_BYTES or not all(isinstance(size, int) and size >= 0 for size in (*shape, start, end)):
        raise ValueError("an unknown dtype, or a size or an offset that is no whole number")
    return TensorEntry(dtype, shape, data_start + start, data_start + end)


def _byte_count(dtype: str, shape: Sequence[int]) -> int:
    return ITEM_BYTES[dtype] * math.prod(shape)
