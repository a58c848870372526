"""A linear layer that several steps of a chain share: one product gives its weight's gradient for all of them.

Autograd would compute a gradient of the weight's size at each use and add them up: of a draft of K2.5's widths 3.8 GB
written and 7.6 read again a step of the chain. Here each use keeps its input and its output's gradient, and the one whose
backward comes last multiplies them all at once, [out, K] by [K, in] with K the rows of all uses, summed in float32.

The last backward is that of the first use: the steps of a chain follow from one another, so that no use's backward can
begin before those of all later ones have ended.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class Uses:
    """What the uses of one weight in one pack have left so far."""

    open: int = 0
    inputs: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)

    def weight_gradient(self, dtype: torch.dtype) -> Tensor:
        """[out, in] of all uses."""
        x, of_output = torch.cat(self.inputs), torch.cat(self.gradients)
        self.inputs.clear()
        self.gradients.clear()
        if x.is_cuda and x.dtype != dtype:
            return torch.mm(of_output.t(), x, out_dtype=dtype)
        return (of_output.t() @ x).to(dtype)


def linear(x: Tensor, parameter: Tensor, weight: Tensor, uses: Uses) -> Tensor:
    """x [R, in] by `weight` [out, in], which is `parameter` in the dtype of the product; the gradient goes to `parameter`."""
    x = x.to(weight.dtype)
    return _Linear.apply(x, parameter, weight, uses) if parameter.requires_grad else x @ weight.t()


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, parameter: Tensor, weight: Tensor, uses: Uses) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.uses, ctx.dtype = uses, parameter.dtype
        uses.open += 1
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, of_output: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        uses: Uses = ctx.uses
        uses.open -= 1
        uses.inputs.append(x)
        uses.gradients.append(of_output)
        of_x = of_output @ weight if ctx.needs_input_grad[0] else None
        return of_x, None if uses.open else uses.weight_gradient(ctx.dtype), None, None
