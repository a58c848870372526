"""INT4 weights unpacked, on whatever device they are: bit for bit what compressed-tensors gives."""

import torch
from torch import Tensor

ZERO = 8  # what the packing adds to a value of -8…7


def unpack(packed: Tensor, scale: Tensor) -> Tensor:
    """Weights [..., in] in the scale's dtype, from int32 [..., in / 8] and scales [..., in / group].

    Nibble n of a word, lowest first, is value 8 · word + n; less 8, times its group's scale, rounded once to the
    scale's dtype. Source: compressed-tensors' pack_quantized/helpers.py and quantization/lifecycle/forward.py.
    """
    pairs = packed.contiguous().view(torch.uint8)  # little-endian: byte j of a word holds nibbles 2j and 2j + 1
    values = torch.stack((pairs & 0xF, pairs >> 4), dim=-1).flatten(-2).to(scale.dtype) - ZERO
    return (values.unflatten(-1, (scale.shape[-1], -1)) * scale[..., None]).flatten(-2)
