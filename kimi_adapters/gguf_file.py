"""The container format of a GGUF file, read in one pass: metadata and where each tensor lies.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. gguf's own reader makes a NumPy array of every token
and takes 5.3 CPU-s for a vocabulary of 49152; this one takes 0.2.
"""

import math
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from errors import UserError

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_FLOAT32, _STRING, _ARRAY = 6, 8, 9
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True)
class GgufTensor:
    """`shape` in NumPy's order (rows first), `kind` a ggml type number, `start` a byte offset in the file."""

    shape: tuple[int, ...]
    kind: int
    start: int


class GgufFile:
    """`metadata` by key, `tensors` by name in file order. UserError when it is no whole GGUF file."""

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        try:
            with open(path, "rb") as file:
                self._data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:
            raise UserError(f"{self.path} cannot be read ({error}); give a GGUF file.") from error
        self._position = 0
        try:
            self.metadata, self.tensors = self._parse()
        except (struct.error, UnicodeDecodeError, KeyError) as error:
            raise UserError(f"{self.path} is not a whole GGUF file; download it again.") from error

    def _parse(self) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
        if bytes(self._data[:4]) != b"GGUF":
            raise UserError(f"{self.path} is not a GGUF file; give one.")
        self._position = 4
        version, num_tensors, num_keys = (self._scalar(code) for code in ("<I", "<Q", "<Q"))
        if version not in _VERSIONS:
            raise UserError(f"{self.path} is GGUF version {version}; supported: {_VERSIONS}.")
        metadata = {self._string(): self._value(self._scalar("<I")) for _ in range(num_keys)}
        infos = [(self._string(), *self._tensor_info()) for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        data_start = -(-self._position // alignment) * alignment
        return metadata, {name: GgufTensor(shape, kind, data_start + at) for name, shape, kind, at in infos}

    def _tensor_info(self) -> tuple[tuple[int, ...], int, int]:
        sizes = [self._scalar("<Q") for _ in range(self._scalar("<I"))]
        return tuple(reversed(sizes)), self._scalar("<I"), self._scalar("<Q")

    def _scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from(code, self._data, self._position)
        self._position += struct.calcsize(code)
        return value

    def _string(self) -> str:
        length = self._scalar("<Q")
        start = self._position
        if start + length > len(self._data):
            raise struct.error
        self._position = start + length
        return str(self._data[start : self._position], "utf-8")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            item_kind, count = self._scalar("<I"), self._scalar("<Q")
            return [self._value(item_kind) for _ in range(count)]
        value = self._scalar(_SCALARS[kind])
        # 1e-5 was stored as float32: its shortest decimal is the number that was meant, and the same float32.
        return float(str(np.float32(value))) if kind == _FLOAT32 else value

    def stored(self, name: str) -> np.ndarray:
        """A tensor as it is stored, uint8 [rows, bytes of a row]. UserError on a truncated file."""
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        tensor = self.tensors[name]
        block_items, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(tensor.kind)]
        *rows, columns = tensor.shape
        row_bytes = columns // block_items * block_bytes
        end = tensor.start + row_bytes * math.prod(rows)
        if end > len(self._data):
            raise UserError(f"{self.path} is not a whole GGUF file; download it again.")
        return np.frombuffer(self._data[tensor.start : end], dtype=np.uint8).reshape(*rows, row_bytes)

    def array(self, name: str) -> np.ndarray:
        """A tensor in float32, its own shape, dequantised by gguf's formulas. UserError on a truncated file."""
        from gguf import GGMLQuantizationType, dequantize

        tensor, stored = self.tensors[name], self.stored(name)
        kind = GGMLQuantizationType(tensor.kind)
        plain = {"F32": "<f4", "F16": "<f2"}.get(kind.name)
        values = dequantize(stored.view(plain) if plain else stored, kind)
        return np.ascontiguousarray(values, dtype="<f4").reshape(tensor.shape)
