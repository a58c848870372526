"""Safetensors as we write and read them, beside the safetensors library."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from errors import UserError
from kimi_adapters.tensor_file import TensorFile, TensorWriter, read_array

ARRAYS: dict[str, np.ndarray] = {
    "ids": np.arange(5, dtype=np.int32),
    "offsets": np.array([0, 5], dtype=np.int64),
    "mask": np.array([[1, 0, 1]], dtype=np.uint8),
    "used": np.array([True, False]),
    "states": np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4),
    "none": np.zeros((0, 4), dtype=np.float32),
}
DTYPES = {"ids": "I32", "offsets": "I64", "mask": "U8", "used": "BOOL", "states": "F32", "none": "F32"}
ENTRIES = [(name, DTYPES[name], array.shape) for name, array in ARRAYS.items()]


def write(path: Path) -> None:
    with open(path, "wb") as file:
        writer = TensorWriter(file, ENTRIES, {"format": "pt"})
        for name, array in ARRAYS.items():
            for row in array:
                writer.write(name, np.ascontiguousarray(row))
        writer.close()


def test_the_library_reads_ours_and_we_read_its(tmp_path: Path) -> None:
    write(tmp_path / "ours")
    save_file(ARRAYS, tmp_path / "theirs", {"a": "b"})
    loaded = load_file(tmp_path / "ours")
    with TensorFile(tmp_path / "ours") as ours, TensorFile(tmp_path / "theirs") as theirs:
        assert list(ours.entries) == list(ARRAYS) and ours.metadata == {"format": "pt"}
        for name, array in ARRAYS.items():
            for read in (loaded[name], read_array(ours, name), read_array(theirs, name)):
                assert read.dtype == array.dtype and np.array_equal(read, array), name
            buffer = bytearray(array.nbytes)
            ours.read_into(name, memoryview(buffer))
            assert bytes(buffer) == array.tobytes() == bytes(ours.bytes(name))
        with pytest.raises(UserError, match="no tensor 'other'"):
            ours.bytes("other")


def test_a_writer_holds_its_caller_to_the_declaration(tmp_path: Path) -> None:
    with open(tmp_path / "x", "wb") as file:
        writer = TensorWriter(file, [("a", "U8", (2,)), ("b", "U8", (2,))])
        with pytest.raises(ValueError, match="'b' came where 'a' was expected"):
            writer.write("b", b"12")
        writer.write("a", b"1")
        with pytest.raises(ValueError, match="1 bytes too many"):
            writer.write("a", b"23")
        with pytest.raises(ValueError, match="'a' lacks 1 bytes"):
            writer.close()
        with pytest.raises(ValueError, match="declared twice"):
            TensorWriter(file, [("a", "U8", (2,)), ("a", "U8", (2,))])


@pytest.mark.parametrize("length", [0, 7, 8, 40, -1])
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, length: int) -> None:
    write(tmp_path / "x")
    (tmp_path / "x").write_bytes((tmp_path / "x").read_bytes()[:length])
    with pytest.raises(UserError, match="not a whole safetensors file"):
        TensorFile(tmp_path / "x")


@pytest.mark.parametrize(
    "header",
    [
        {
            "a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
            "b": {"dtype": "U8", "shape": [4], "data_offsets": [2, 6]},
        },
        {"a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 4]}},
        {"a": {"dtype": "U8", "shape": [-4], "data_offsets": [0, 4]}},
        {"a": {"dtype": "pickle", "shape": [4], "data_offsets": [0, 4]}},
        {"a": {"dtype": "U8", "shape": [4]}},
        {"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}},
        [1],
    ],
)
def test_a_header_that_lies_is_refused(tmp_path: Path, header: object) -> None:
    text = json.dumps(header).encode()
    (tmp_path / "x").write_bytes(len(text).to_bytes(8, "little") + text + bytes(6))
    with pytest.raises(UserError, match="not a whole safetensors file"):
        TensorFile(tmp_path / "x")


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be opened"):
        TensorFile(tmp_path / "nothing")
