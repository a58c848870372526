"""Torch tensors in and out of safetensors files, through our own reader and writer."""

from collections.abc import Mapping

import torch
from torch import Tensor

from kimi_adapters.tensor_file import TensorFile, TensorWriter, Writable
from kimi_adapters.weights import torch_dtype

DTYPE_NAMES = {
    torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64", torch.int32: "I32",
    torch.bool: "BOOL", torch.uint8: "U8",
}  # fmt: skip


def write_tensors(
    file: Writable,
    tensors: Mapping[str, Tensor],
    dtype: torch.dtype | None = None,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """A safetensors file of `tensors` in their order, floating ones as `dtype` (None: as they are)."""
    stored = {name: dtype if dtype and value.is_floating_point() else value.dtype for name, value in tensors.items()}
    entries = [(name, DTYPE_NAMES[stored[name]], list(value.shape)) for name, value in tensors.items()]
    writer = TensorWriter(file, entries, metadata)
    for name, value in tensors.items():
        flat = value.detach().to("cpu", stored[name]).reshape(-1).contiguous()
        writer.write(name, flat.view(torch.uint8).numpy())
    writer.close()


def read_tensors(file: TensorFile) -> dict[str, Tensor]:
    """Every tensor of a file, copied into memory, on CPU, in its stored dtype."""
    tensors = {}
    for name, entry in file.entries.items():
        tensors[name] = torch.empty(entry.shape, dtype=torch_dtype(entry.dtype))
        if tensors[name].numel():
            file.read_into(name, tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return tensors
