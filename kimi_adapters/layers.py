"""The pieces that all families are made of. Means of norms are taken in float32 whatever the dtype."""

import torch
import torch.nn.functional as F
from torch import Tensor

FEW_ROWS = 64


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last dimension, the mean in float32; the dtype of x."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * (wide * scale).to(x.dtype)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., in] · weightᵀ + bias, weight [out, in].

    For few rows on a CPU the weight goes on the left: MKL then takes 0.5 to 0.9 of the time (4 rows of SmolLM2's head:
    17 ms for 34; 48 rows of its layers: 200 for 280).
    """
    rows = x.numel() // x.shape[-1]
    if x.device.type != "cpu" or not 1 < rows <= FEW_ROWS:
        return F.linear(x, weight, bias)
    out = (weight @ x.reshape(rows, -1).t()).t().contiguous().view(*x.shape[:-1], -1)
    return out if bias is None else out + bias


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) · up of [..., 2 · width], the gate in front."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up
