"""Head and loss on a GPU, a chunk of rows at a time, the gradient taken beside the value.

A loss is a sum over rows, so that the gradient of a chunk's logits is known as soon as they are, and nothing of
[R, draft vocabulary] outlives its chunk but the verifier's logits, in bfloat16. speculators' eager loss keeps two float32
buffers of that size a step of the chain.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from speculators.losses import LossConfig
from torch import Tensor

from kimi_adapters.gpu_layers import GpuLayers, compiled_on_gpu, rms_norm

CHUNK = 4096  # rows at once: 262 MB of bfloat16 logits at 32,000 draft tokens, twice that a float32 buffer
Judge = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class ChunkedHead:
    """The loss of rows of a pack, whose draft's lm_head is trained or not."""

    def __init__(self, draft: GpuLayers, loss_config: LossConfig):
        self.draft = draft
        self.judge = _judge(tuple(loss_config.values()))

    def aim(self, last: Tensor) -> None:
        """Take the states [S, H] of the supervised tokens that enter the verifier's final norm: the targets follow."""
        weights, name = self.draft.weights, "verifier_lm_head.weight"
        head = self.draft.copies.of(name, weights[name])
        with torch.no_grad():
            normed = rms_norm(last, weights["verifier_norm.weight"], self.draft.shape.rms_norm_eps)
            self.targets = normed.to(head.dtype) @ head.t()
            self.likeliest = self.targets.argmax(dim=-1)

    def term(self, normed: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """(the sum of the losses, float32; which draft the likeliest token, [N]) of normed [N, H] against tokens wanted [N]."""
        head = self.draft.weights["lm_head.weight"]
        weight = self.draft.copies.of("lm_head.weight", head)
        total, drafted = _Term.apply(normed.to(weight.dtype), head, weight, self.targets, wanted, self.judge)
        return total, drafted == self.likeliest[wanted]


@cache
def _judge(terms: tuple[tuple[Callable[[Tensor, Tensor], Tensor], float], ...]) -> Judge:
    """Logits [N, V], targets [S, V] and numbers [N] of S -> (sum of losses, argmax [N]); compiled on a GPU."""

    @compiled_on_gpu
    def judge(logits: Tensor, targets: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        of = targets[wanted][None]
        losses = torch.stack([weight * fn(logits[None], of)[0] for fn, weight in terms]).sum(dim=0)
        return losses.float().sum(), logits.argmax(dim=-1)

    return judge


class _Term(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, normed: Tensor, head: Tensor, weight: Tensor, targets: Tensor, wanted: Tensor, judge: Judge
    ) -> tuple[Tensor, Tensor]:
        total = torch.zeros((), device=normed.device)
        of_normed = torch.empty_like(normed)
        of_head = torch.zeros_like(head) if ctx.needs_input_grad[1] else None
        drafted = torch.empty_like(wanted)
        for start in range(0, len(normed), CHUNK):
            part = slice(start, start + CHUNK)
            logits = (normed[part] @ weight.t()).requires_grad_(True)
            with torch.enable_grad():
                loss, drafted[part] = judge(logits, targets, wanted[part])
                (of_logits,) = torch.autograd.grad(loss, logits)
            total += loss.detach()
            of_normed[part] = of_logits @ weight
            if of_head is not None:
                of_head += of_logits.t() @ normed[part]
        ctx.save_for_backward(of_normed, of_head)
        ctx.mark_non_differentiable(drafted)
        return total, drafted

    @staticmethod
    def backward(ctx: Any, of_total: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        of_normed, of_head = ctx.saved_tensors
        return of_normed * of_total, None if of_head is None else of_head * of_total, None, None, None, None
