"""Rotary positions as DeepSeek-V3's checkpoints have them: stretched by YaRN, on pairs of neighbours."""

import math

import torch
from torch import Tensor

from kimi_adapters.deepseek_config import DeepseekConfig, YarnScaling


def inverse_frequencies(config: DeepseekConfig) -> Tensor:
    """Inverse frequencies, float32 [qk_rope_head_dim / 2].

    YaRN (https://arxiv.org/abs/2309.00071): those that turn often within the original length stay, slow ones are
    divided by the factor, those between are mixed; in the order of operations of transformers' modeling_rope_utils.py.
    """
    dim = config.qk_rope_head_dim
    periods = config.rope_theta ** (torch.arange(0, dim, 2).float() / dim)
    scaling = config.rope_scaling
    if scaling is None:
        return 1.0 / periods
    low, high = _corrected_dims(scaling, dim, config.rope_theta)
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    kept = 1 - ramp
    return 1.0 / (scaling.factor * periods) * (1 - kept) + 1.0 / periods * kept


def rope_tables(config: DeepseekConfig, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin, float32 [T, 1, qk_rope_head_dim / 2] for integer positions [T]; they broadcast over heads."""
    factor = config.rope_scaling.attention_factor if config.rope_scaling else 1.0
    angles = (positions[:, None].float() * inverse_frequencies(config).to(positions.device))[:, None]
    return angles.cos() * factor, angles.sin() * factor


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates x [T, heads, D] in float32, pairs (0, 1), (2, 3), …; the dtype of x.

    First members come out in front, second ones behind: queries and keys alike, so that their products are the same.
    """
    wide = x.float()
    first, second = wide[..., 0::2], wide[..., 1::2]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def _corrected_dims(scaling: YarnScaling, dim: int, theta: float) -> tuple[float, float]:
    """Between which dimensions the mixing goes from all to nothing."""

    def at(rotations: float) -> float:
        length = scaling.original_max_position_embeddings
        return dim * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = at(scaling.beta_fast), at(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    return low, high + 0.001 if low == high else high
