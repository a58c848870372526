"""Triton kernels of a mixture of experts: unpacking INT4, routing, spreading rows to experts and summing them back.

Every kernel writes each element of its output once, in a fixed order of operations: no atomics, so that the same
inputs give the same bits. Sums are in float32 and rounded once. Bytes moved are stated a token at K2.5's widths.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

WORDS = 1024  # int32 words that one program unpacks: a row of 896, or four of 256
COLUMNS = 1024  # columns of a row that one program moves


@triton.jit
def _unpack(
    packed, scale, out, rows, words, half, GROUP_WORDS: tl.constexpr, PAIRED: tl.constexpr, ROWS: tl.constexpr,
    WORDS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    inside = (row < rows)[:, None] & (column < words)[None, :]
    word = tl.load(packed + row[:, None] * words + column[None, :], mask=inside, other=0)
    groups = words // GROUP_WORDS
    factor = tl.load(scale + row[:, None] * groups + column[None, :] // GROUP_WORDS, mask=inside, other=0.0).to(tl.float32)
    place = tl.arange(0, 8)
    # 0x43000000 is 128.0 in float32, with bit 16 worth 1: the nibble lands there without a conversion.
    bits = (((word[:, :, None] >> (place * 4)[None, None, :]) & 0xF) << 16) | 0x43000000
    value = (bits.to(tl.float32, bitcast=True) - 136.0) * factor[:, :, None]
    if PAIRED > 0:
        inner = row % (2 * half)
        up = inner // half
        inner -= up * half
        row = row // (2 * half) * (2 * half) + inner // PAIRED * (2 * PAIRED) + up * PAIRED + inner % PAIRED
    target = (row[:, None] * words + column[None, :])[:, :, None] * 8 + place[None, None, :]
    tl.store(out + target, value.to(out.dtype.element_ty), mask=inside[:, :, None])


def unpack_int4(packed: Tensor, scale: Tensor, out: Tensor, paired: int = 0) -> Tensor:
    """Weights into `out` bf16 [E, out, in], from int32 [E, out, in / 8] and bf16 scales [E, out, in / group]; returns `out`.

    (nibble - 8) · scale, rounded once to bf16: the bits of int4.unpack. 2.6 bytes a weight. With `paired`, which divides
    half the rows, that many rows of the first half are followed by as many of the second, and so on.
    """
    experts, rows, words = packed.shape
    columns = min(WORDS, triton.next_power_of_2(words))
    together = WORDS // columns
    grid = (triton.cdiv(experts * rows, together), triton.cdiv(words, columns))
    _unpack[grid](
        packed, scale, out, experts * rows, words, max(1, rows // 2), GROUP_WORDS=words // scale.shape[-1], PAIRED=paired,
        ROWS=together, WORDS=columns,
    )  # fmt: skip
    return out


@triton.jit
def _route(
    logits, bias, chosen, weights, tokens, experts, scaling, K: tl.constexpr, NORMED: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    expert = tl.arange(0, BLOCK)
    real = (row < tokens)[:, None] & (expert < experts)[None, :]
    logit = tl.load(logits + row.to(tl.int64)[:, None] * experts + expert[None, :], mask=real, other=0.0)
    score = 1.0 / (1.0 + tl.exp(-logit))
    correction = tl.load(bias + expert, mask=expert < experts, other=0.0)
    left = tl.where((expert < experts)[None, :], score + correction[None, :], float("-inf"))
    taken = tl.zeros([ROWS, BLOCK], dtype=tl.int32)
    for _ in tl.static_range(K):
        best = tl.argmax(left, axis=1, tie_break_left=True)
        now = expert[None, :] == best[:, None]
        taken = tl.where(now, 1, taken)
        left = tl.where(now, float("-inf"), left)
    share = tl.where(taken == 1, score, 0.0)
    if NORMED:
        share = share / (tl.sum(share, axis=1)[:, None] + 1e-20)
    place = row.to(tl.int64)[:, None] * K + tl.cumsum(taken, axis=1) - 1
    kept = real & (taken == 1)
    tl.store(chosen + place, tl.broadcast_to(expert[None, :], [ROWS, BLOCK]).to(tl.int16), mask=kept)
    tl.store(weights + place, share * scaling, mask=kept)


def choose_experts(logits: Tensor, bias: Tensor, k: int, scaling: float, normed: bool) -> tuple[Tensor, Tensor]:
    """Each token's `k` experts, int16 [t, k] rising, and their weights, float32 [t, k], of float32 logits [t, E].

    The choice is by sigmoid plus `bias`, the lower expert first among equals; weights are sigmoids, divided by their
    sum when `normed`, times `scaling`. As moe.route does without groups of experts.
    """
    tokens, experts = logits.shape
    chosen = torch.empty(tokens, k, dtype=torch.int16, device=logits.device)
    weights = torch.empty(tokens, k, dtype=torch.float32, device=logits.device)
    rows, block = 4, triton.next_power_of_2(experts)
    _route[(triton.cdiv(tokens, rows),)](
        logits, bias, chosen, weights, tokens, experts, scaling, K=k, NORMED=normed, ROWS=rows, BLOCK=block, num_warps=4
    )
    return chosen, weights


@triton.jit
def _place(order, back, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    source = tl.load(order + at, mask=at < count, other=0)
    tl.store(back + source, at, mask=at < count)


def sort_by_expert(chosen: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """Where rows go: int32 [t, k], the row of a token's j-th expert once rows are sorted by expert (tokens in order
    within one), and int32 [E], the rows up to each expert's last. Nothing waits for the device."""
    flat = chosen.flatten()
    by_expert, order = flat.sort(stable=True)
    numbers = torch.arange(experts, dtype=flat.dtype, device=flat.device)
    ends = torch.searchsorted(by_expert, numbers, right=True, out_int32=True)
    back = torch.empty(chosen.shape, dtype=torch.int32, device=flat.device)
    _place[(triton.cdiv(len(flat), 1024),)](order, back, len(flat), BLOCK=1024)
    return back, ends


@triton.jit
def _spread(x, back, out, width, K: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(x + token * width + column, mask=column < width)
    for k in tl.static_range(K):
        target = tl.load(back + token * K + k).to(tl.int64)
        tl.store(out + target * width + column, row, mask=column < width)


def spread_rows(x: Tensor, back: Tensor, out: Tensor) -> Tensor:
    """out[back[t, k]] = x[t]: x [t, width] to each of its experts' rows of `out` [t · k, width]; returns `out`.

    A row is read once and written k times: 129 kB a token, where a gather by row moves 229 kB.
    """
    tokens, width = x.shape
    _spread[(tokens, triton.cdiv(width, COLUMNS))](x, back, out, width, K=back.shape[1], BLOCK=COLUMNS)
    return out


@triton.jit
def _swiglu(gate_up, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(gate_up + row * 2 * width + column, mask=column < width, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + column, mask=column < width, other=0.0).to(tl.float32)
    inner = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * width + column, inner.to(out.dtype.element_ty), mask=column < width)


def swiglu_rows(gate_up: Tensor) -> Tensor:
    """silu(gate) · up of contiguous [rows, 2 · width], the gate in front: float32 inside, rounded once."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, width)
    block = min(2048, triton.next_power_of_2(width))
    _swiglu[(rows, triton.cdiv(width, block))](gate_up, out, width, BLOCK=block)
    return out


@triton.jit
def _combine(stream, shared, outputs, back, weights, width, K: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for k in tl.static_range(K):
        source = tl.load(back + token * K + k).to(tl.int64)
        share = tl.load(weights + token * K + k)
        total += share * tl.load(outputs + source * width + column, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(shared + token * width + column, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(stream + token * width + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(stream + token * width + column, total.to(stream.dtype.element_ty), mask=inside)


def combine_rows(stream: Tensor, shared: Tensor, outputs: Tensor, back: Tensor, weights: Tensor) -> None:
    """stream[t] += shared[t] + sum over k of weights[t, k] · outputs[back[t, k]], in place.

    Added in float32 for k = 0, 1, …, then shared, then the stream itself; rounded once. 158 kB a token.
    """
    tokens, width = stream.shape
    grid = (tokens, triton.cdiv(width, COLUMNS))
    _combine[grid](stream, shared, outputs, back, weights, width, K=back.shape[1], BLOCK=COLUMNS)
