"""Triton kernels around latent attention: norms, rotary positions in place and the keys put together.

Each element is written once, from values read by the same program: the same inputs give the same bits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rms_norm(x, gain, out, width, x_stride, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    value = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, axis=0) / width + eps)
    normed = (value * scale).to(out.dtype.element_ty).to(tl.float32)
    weight = tl.load(gain + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, (weight * normed).to(out.dtype.element_ty), mask=inside)


def rms_norm_rows(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """layers.rms_norm of x [rows, width], whose rows may be a slice of longer ones; contiguous."""
    rows, width = x.shape
    out = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(width)
    warps = 16 if block > 4096 else 8 if block > 1024 else 4
    _rms_norm[(rows,)](x, gain, out, width, x.stride(0), eps, BLOCK=block, num_warps=warps)
    return out


@triton.jit
def _turn(word, cos, sin):
    """A pair of bf16 in an int32, the first member low, turned in float32."""
    first = (word << 16).to(tl.float32, bitcast=True)
    second = (word & -65536).to(tl.float32, bitcast=True)
    low = (first * cos - second * sin).to(tl.bfloat16).to(tl.int16, bitcast=True).to(tl.int32)
    high = (second * cos + first * sin).to(tl.bfloat16).to(tl.int16, bitcast=True).to(tl.int32)
    return (low & 65535) | (high << 16)


@triton.jit
def _place_positions(
    q, kv, shared_key, k, cos, sin, heads, shared_stride, NOPE: tl.constexpr, PAIRS: tl.constexpr, VALUE: tl.constexpr,
    HEADS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """All widths count int32 words of two bf16: NOPE, PAIRS (the rotary ones) and VALUE a head."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    pair = tl.arange(0, PAIRS)
    real = (head < heads)[:, None]
    c, s = tl.load(cos + token * PAIRS + pair), tl.load(sin + token * PAIRS + pair)
    whole = NOPE + PAIRS
    rows = token * heads * whole + head[:, None] * whole
    place = rows + NOPE + pair[None, :]
    turned = _turn(tl.load(q + place, mask=real, other=0), c[None, :], s[None, :])
    tl.store(q + place, turned, mask=real)
    key = _turn(tl.load(shared_key + token * shared_stride + pair), c, s)
    tl.store(k + place, tl.broadcast_to(key[None, :], [HEADS, PAIRS]), mask=real)
    plain = tl.arange(0, BLOCK)
    kept = real & (plain < NOPE)[None, :]
    source = token * heads * (NOPE + VALUE) + head[:, None] * (NOPE + VALUE) + plain[None, :]
    tl.store(k + rows + plain[None, :], tl.load(kv + source, mask=kept, other=0), mask=kept)


def place_positions(q: Tensor, kv: Tensor, shared_key: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Turns the last 2 · pairs of each q [T, heads, D] in place and fills k [T, heads, D].

    A head's key is the first D - 2 · pairs of kv [T, heads, D - 2 · pairs + value] and the turned `shared_key`
    [T, 2 · pairs], whose rows may be a slice of longer ones. Pairs (0, 1), (2, 3), … stay where they are, in queries
    and keys alike: their products are those of yarn.rotate_pairs. bf16; cos and sin float32 [T, 1, pairs].
    """
    tokens, heads, width = q.shape
    pairs = cos.shape[-1]
    nope, value = width // 2 - pairs, (kv.shape[2] - width) // 2 + pairs
    together = min(16, triton.next_power_of_2(heads))
    words = [part.view(torch.int32) for part in (q, kv, shared_key, k)]
    _place_positions[(tokens, triton.cdiv(heads, together))](
        *words, cos, sin, heads, words[2].stride(0), NOPE=nope, PAIRS=pairs, VALUE=value, HEADS=together,
        BLOCK=triton.next_power_of_2(nope),
    )  # fmt: skip
