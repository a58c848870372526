"""Files of `torch.save`, read without torch and without running pickled code: a zip of one pickle and the tensors' bytes.

The pickle may build lists, dictionaries, numbers, strings and plain tensors; whatever else it names is an error and is
neither imported nor called. Bytes of a tensor are read when they are asked for, and no others.
Format: torch/serialization.py, `_save` (zip) and torch/_utils.py, `_rebuild_tensor_v2`.
"""

import errno
import math
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import numpy as np

from errors import UserError
from kimi_adapters.tensor_file import ITEM_BYTES, NUMPY_DTYPES

_STORAGES = {
    "BFloat16Storage": "BF16", "FloatStorage": "F32", "HalfStorage": "F16", "DoubleStorage": "F64", "LongStorage": "I64",
    "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8", "ByteStorage": "U8", "BoolStorage": "BOOL",
}  # fmt: skip
_PICKLE, _BYTE_ORDER = "data.pkl", "byteorder"
_PIECE = 16 << 20
_PICKLE_LIMIT = 64 << 20  # bytes; of a sample of 128k tokens with its mask as a list: 0.3 MB


@dataclass(frozen=True)
class PtTensor:
    """A tensor that lies in the file: `dtype` by its safetensors name, `start` in bytes within its record."""

    dtype: str
    shape: tuple[int, ...]
    record: str
    start: int

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return ITEM_BYTES[self.dtype] * math.prod(self.shape)


@dataclass(frozen=True)
class _Storage:
    dtype: str


class PtFile:
    """One file: `content` is what was saved, with a PtTensor in each tensor's place.

    UserError: no zip, a file that is not whole, a pickle that asks for code, tensors that do not lie in their record.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        try:
            self._file = open(self.path, "rb")  # noqa: SIM115 - lives as long as this object
        except OSError as error:
            raise UserError(f"{self.path} cannot be opened ({error.strerror}); check the path.") from error
        try:
            with self._telling():
                self.content = self._read_pickle()
        except BaseException:
            self._file.close()
            raise

    def _read_pickle(self) -> Any:
        self._zip = zipfile.ZipFile(self._file)
        names = [name for name in self._zip.namelist() if name.rpartition("/")[2] == _PICKLE]
        if len(names) != 1 or self._zip.getinfo(names[0]).file_size > _PICKLE_LIMIT:
            raise self._malformed("it holds no single pickle of a sample's size")
        self._folder = names[0].removesuffix(_PICKLE)
        self._check_byte_order()
        with self._zip.open(names[0]) as stream:
            return _Unpickler(stream, self).load()

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """A damaged zip or pickle raises nearly anything; a disk's own errors stay what they are."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno != errno.EINVAL:  # a place before the file's beginning
                raise
            raise self._malformed(f"{type(error).__name__} while it was read") from error

    def _malformed(self, why: str) -> UserError:
        return UserError(f"{self.path} is not a whole file of torch.save: {why}; restore or remove it.")

    def _check_byte_order(self) -> None:
        name = self._folder + _BYTE_ORDER
        if name in self._zip.namelist() and self._zip.read(name) != b"little":
            raise self._malformed("its numbers are not little-endian")

    def refuse(self, name: str) -> NoReturn:
        """The pickle names something that is no plain tensor."""
        raise UserError(
            f"{self.path} asks for {name} while it is read, and only plain tensors, lists and numbers are taken from it: "
            "nothing of it was run; save it again without, or remove it."
        )

    def tensor(self, storage: tuple[str, str, int], start: int, shape: Any, stride: Any) -> PtTensor:
        """The tensor over a storage (dtype, record, items) from item `start` on; it must be contiguous."""
        dtype, record, items = storage
        sizes = tuple(shape)
        if 0 in sizes:
            return PtTensor(dtype, sizes, record, 0)
        expected = 1
        for size, step in reversed(list(zip(sizes, stride, strict=True))):
            if size > 1 and step != expected:
                raise self._malformed("a tensor of it is not contiguous")
            expected *= size
        if start < 0 or any(size < 0 for size in sizes) or start + math.prod(sizes) > items:
            raise self._malformed("a tensor of it reaches past its storage")
        if self._zip.getinfo(record).file_size != items * ITEM_BYTES[dtype]:
            raise self._malformed("a storage of it has another size than is said")
        return PtTensor(dtype, sizes, record, start * ITEM_BYTES[dtype])

    def record(self, key: str) -> str:
        """The name in the zip of a storage."""
        return f"{self._folder}data/{key}"

    def bytes(self, tensor: PtTensor) -> bytearray:
        """The bytes of a tensor, row-major."""
        buffer = bytearray(tensor.nbytes)
        if not buffer:
            return buffer
        view, done = memoryview(buffer), 0
        with self._telling(), self._zip.open(tensor.record) as stream:
            stream.seek(tensor.start)
            while done < len(view):
                piece = stream.read(min(_PIECE, len(view) - done))
                if not piece:
                    raise self._malformed("it ended while it was read")
                view[done : done + len(piece)] = piece
                done += len(piece)
        return buffer

    def array(self, tensor: PtTensor) -> np.ndarray:
        """A tensor as a NumPy array; BF16 has no NumPy dtype: ValueError."""
        if tensor.dtype not in NUMPY_DTYPES:
            raise ValueError(f"NumPy has no {tensor.dtype}")
        return np.frombuffer(self.bytes(tensor), NUMPY_DTYPES[tensor.dtype]).reshape(tensor.shape)

    def close(self) -> None:
        """Closes the file."""
        self._zip.close()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class _Unpickler(pickle.Unpickler):
    """Knows plain tensors and ordered dictionaries: all else is refused by its name, before it is imported."""

    def __init__(self, stream: Any, file: PtFile):
        super().__init__(stream)
        self._of = file

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self._rebuilder()
        if module == "torch" and name in _STORAGES:
            return _Storage(_STORAGES[name])
        return self._of.refuse(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> tuple[str, str, int]:
        kind, storage, key, _, items = pid
        if kind != "storage" or not isinstance(storage, _Storage) or not isinstance(items, int):
            self._of.refuse("a storage of an unknown kind")
        return storage.dtype, self._of.record(str(key)), items

    def _rebuilder(self) -> Callable[..., PtTensor]:
        def rebuild(storage: tuple[str, str, int], start: int, shape: Any, stride: Any, *_: Any) -> PtTensor:
            return self._of.tensor(storage, start, shape, stride)

        return rebuild
