"""The one place where code is chosen by what a device can do: sizes of chunks, grouped products, attention."""

import importlib.util
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from kimi_adapters.chunk_sizes import CPU, CUDA, Sizes
from kimi_adapters.layers import linear


def sizes(device: torch.device) -> Sizes:
    """The chunk sizes of a kind of device."""
    return CPU if device.type == "cpu" else CUDA


def free_bytes(device: torch.device) -> int:
    """Memory of the device that nobody else uses now: what this process holds of a GPU counts as free."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    with open("/proc/meminfo", encoding="ascii") as file:
        available = next(line.split()[1] for line in file if line.startswith("MemAvailable"))
    return int(available) * 1024


def grouped_linear(x: Tensor, weight: Tensor, ends: Sequence[int]) -> Tensor:
    """Rows of x [R, in] through their own expert's weight [E, out, in]; expert e has the rows up to `ends[e]`."""
    if _has_grouped_products(x):
        bounds = torch.tensor(ends, dtype=torch.int32, device=x.device)
        return torch._grouped_mm(x, weight.transpose(1, 2), offs=bounds)
    out = x.new_empty(len(x), weight.shape[1])
    start = 0
    for expert, end in enumerate(ends):
        if end > start:
            out[start:end] = linear(x[start:end], weight[expert])
        start = end
    return out


def causal_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Causal attention of one sample: q, k [T, heads, D], v [T, heads, E]; gives [T, heads, E].

    On a CPU values narrower than the keys are padded to them: the path that keeps no T · T scores wants one width.
    """
    width = v.shape[-1]
    if q.device.type == "cpu" and width < q.shape[-1]:
        v = F.pad(v, (0, q.shape[-1] - width))
    query, key, value = (part.transpose(0, 1)[None] for part in (q, k, v))
    with _attention_path(q):
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
    return out[0].transpose(0, 1)[..., :width]


def _attention_path(q: Tensor) -> AbstractContextManager[None]:
    """cuDNN where it can: 548-593 TFLOP/s on an H200 at 192/128 wide heads, the same bits twice; flash 240-330."""
    if q.device.type != "cuda":
        return nullcontext()
    order = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    path: AbstractContextManager[None] = sdpa_kernel(order, set_priority=True)
    return path


def has_fused_kernels(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether deepseek_fused runs there: an NVIDIA GPU of Hopper's kind or later, bf16, Triton."""
    if device.type != "cuda" or dtype != torch.bfloat16 or importlib.util.find_spec("triton") is None:
        return False
    return hasattr(torch, "_grouped_mm") and torch.cuda.get_device_capability(device) >= (9, 0)


def _has_grouped_products(x: Tensor) -> bool:
    if x.device.type != "cuda" or x.dtype != torch.bfloat16 or not hasattr(torch, "_grouped_mm"):
        return False
    return torch.cuda.get_device_capability(x.device) >= (9, 0)
