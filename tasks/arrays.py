"""NumPy arrays by name, written to and read from a safetensors file: the same arrays give the same bytes."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from kimi_adapters.tensor_file import NUMPY_DTYPES, TensorFile, TensorWriter, Writable, read_array

_NAMES = {np.dtype(numpy_name): name for name, numpy_name in NUMPY_DTYPES.items()}


def write_arrays(file: Writable, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays in the order of the mapping; dtypes that safetensors and NumPy share."""
    writer = TensorWriter(file, [(name, _NAMES[array.dtype], array.shape) for name, array in arrays.items()])
    for name, array in arrays.items():
        writer.write(name, np.ascontiguousarray(array))
    writer.close()


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """All arrays of a file, read-only views of it, in its order. ``UserError`` where the file is not whole."""
    with TensorFile(path) as file:
        return {name: read_array(file, name) for name in file.entries}
