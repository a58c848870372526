"""Products of rows with their own expert's weight in one persistent Triton kernel, for Hopper's tensor copies.

Tiles are dealt out on the device from each expert's last row, so nothing waits for a count. A row's sums run over the
columns in order, in float32, whatever rows are beside it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

ROWS, COLUMNS, DEPTH = 128, 256, 64  # of a tile; 48 KB a stage
HALF = COLUMNS // 2
STAGES, WARPS = 3, 8  # four stages fit too, and were 1 to 3% slower on an H200


@triton.jit
def _grouped(
    x, weight, out, ends, experts, width, depth, BLOCK: tl.constexpr, SWIGLU: tl.constexpr, PROGRAMS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    expert_numbers = tl.arange(0, BLOCK)
    real = expert_numbers < experts
    last_rows = tl.load(ends + expert_numbers, mask=real, other=0)
    first_rows = tl.load(ends + expert_numbers - 1, mask=real & (expert_numbers > 0), other=0)
    row_tiles = tl.where(real, (last_rows - first_rows + ROWS - 1) // ROWS, 0)
    column_tiles = width // COLUMNS
    tile_ends = tl.cumsum(row_tiles, 0) * column_tiles
    for tile in tl.range(tl.program_id(0), tl.sum(row_tiles, 0) * column_tiles, PROGRAMS, flatten=True):
        expert = tl.sum((tile_ends <= tile).to(tl.int32), 0)
        last = tl.load(ends + expert)
        first = tl.load(ends + expert - 1, mask=expert > 0, other=0)
        high = (last - first + ROWS - 1) // ROWS
        before = tl.sum(tl.where(expert_numbers < expert, row_tiles, 0), 0) * column_tiles
        start = first + (tile - before) % high * ROWS
        column = (tile - before) // high * COLUMNS
        total = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
        for at in tl.range(0, depth, DEPTH):
            total = tl.dot(x.load([start, at]), weight.load([expert * width + column, at]).T, total)
        row = start + tl.arange(0, ROWS)
        inside = (row < last)[:, None]
        if SWIGLU:
            gate, up = tl.split(tl.permute(tl.reshape(total, [ROWS, 2, COLUMNS // 2]), (0, 2, 1)))
            inner = (gate / (1.0 + tl.exp(-gate)) * up).to(out.dtype.element_ty)
            place = row.to(tl.int64)[:, None] * (width // 2) + column // 2 + tl.arange(0, COLUMNS // 2)[None, :]
            tl.store(out + place, inner, mask=inside)
        else:
            place = row.to(tl.int64)[:, None] * width + column + tl.arange(0, COLUMNS)[None, :]
            tl.store(out + place, total.to(out.dtype.element_ty), mask=inside)


def _launch(x: Tensor, weight: Tensor, ends: Tensor, out: Tensor, swiglu: bool) -> Tensor:
    experts, width, depth = weight.shape
    programs = torch.cuda.get_device_properties(x.device).multi_processor_count
    _grouped[(programs,)](
        TensorDescriptor.from_tensor(x, [ROWS, DEPTH]),
        TensorDescriptor.from_tensor(weight.view(experts * width, depth), [COLUMNS, DEPTH]),
        out, ends, experts, width, depth, BLOCK=triton.next_power_of_2(experts), SWIGLU=swiglu, PROGRAMS=programs,
        ROWS=ROWS, COLUMNS=COLUMNS, DEPTH=DEPTH, num_stages=STAGES, num_warps=WARPS,
    )  # fmt: skip
    return out


def fits(width: int, depth: int) -> bool:
    """Whether a weight [width, depth] is cut to whole tiles."""
    return width % COLUMNS == 0 and depth % DEPTH == 0


def grouped_product(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """x [R, in] through each row's own expert: weight [E, out, in], expert e has the rows up to ends[e]; bf16."""
    return _launch(x, weight, ends, x.new_empty(len(x), weight.shape[1]), False)


def grouped_swiglu(x: Tensor, gate_up: Tensor, ends: Tensor) -> Tensor:
    """silu(gate) · up of x through each row's own expert, rounded once; [R, width].

    gate_up [E, 2 · width, in] has HALF rows of the gate, then the same HALF of up, and so on.
    """
    return _launch(x, gate_up, ends, x.new_empty(len(x), gate_up.shape[1] // 2), True)
