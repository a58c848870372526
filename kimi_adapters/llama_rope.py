"""Llama's rotary positions, in float32 whatever the weights' dtype.

Formulas: transformers' modeling_llama.py and, for stretched frequencies, `rope_type` "llama3" of its modeling_rope_utils.py.
"""

import math

import torch
from torch import Tensor

from kimi_adapters.llama_config import LlamaConfig


def inverse_frequencies(config: LlamaConfig, device: torch.device | str) -> Tensor:
    """Rotary inverse frequencies, float32 [head_dim / 2]."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    scaling = config.rope_scaling
    if scaling is not None:
        lengths = 2 * math.pi / frequencies
        old, low, high = scaling.original_max_position_embeddings, scaling.low_freq_factor, scaling.high_freq_factor
        smooth = ((old / lengths - low) / (high - low)).clamp(0, 1)
        frequencies = (1 - smooth) * frequencies / scaling.factor + smooth * frequencies
    return frequencies.to(device)


def rope_tables(frequencies: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin, float32 [..., 1, head_dim] for integer positions [...]; they broadcast over heads."""
    angles = positions[..., None].float() * frequencies
    angles = torch.cat([angles, angles], dim=-1)[..., None, :]
    return angles.cos(), angles.sin()


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates x [..., heads, head_dim] in float32, pairs lying head_dim / 2 apart; the dtype of x."""
    wide = x.float()
    half = wide.shape[-1] // 2
    turned = torch.cat([-wide[..., half:], wide[..., :half]], dim=-1)
    return (wide * cos + turned * sin).to(x.dtype)
