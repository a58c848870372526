"""The training-time-test loss of a pack, computed only where a supervised token counts.

speculators' Eagle3DraftModel.forward runs every index of a pack through every step, and the head and the loss over
all of them. Of T indices with a supervised share f this needs: keys and values of step 0 for all T, everything else
for about f · T rows, and nothing for padding. The loss, its gradients and the accuracies are those of the forward
(tests hold them to it), given documents whose first `ttt_steps` - 1 indices carry no loss, as `packing` makes them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from speculators.losses import LossConfig
from torch import Tensor

from kimi_adapters.draft_layers import DraftLayers, FreshKeys

EPSILON = 1e-5  # speculators' loss reduction divides by the count plus this


class Head(Protocol):
    """Head and loss of one pack."""

    def aim(self, last: Tensor) -> None:
        """Take the states [S, H] of the supervised tokens that enter the verifier's final norm: the targets follow."""

    def term(self, normed: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """(the sum of the losses; which draft the likeliest token, [N]) of normed [N, H] against tokens wanted [N] of S."""


def ttt_loss(
    draft: DraftLayers, batch: Mapping[str, Tensor], ttt_steps: int, ttt_decay: float, head: Head
) -> tuple[Tensor, dict[str, Tensor]]:
    """(loss, sums) of one pack: batch as `PackedShards.load` gives it, `draft` over the model's own parameters.

    The loss is the sum over steps of ttt_decay^step · the mean over supervised tokens. The sums are what
    speculators' metrics hold: loss_{s}_sum, full_acc_{s}_sum and full_acc_{s}_total, where a token counts as right at
    step s if its chain was right at every step up to s.
    """
    tokens, positions = batch["input_ids"][0], batch["position_ids"][0]
    chains = Chains.of(batch["loss_mask"][0].bool(), ttt_steps, draft.row_block)
    rows, right = chains.rows, chains.supervised
    head.aim(batch["verifier_last_hidden_states"][0].index_select(0, chains.tokens))
    sight = draft.sight(batch["document_ids"][0])

    store, chain = FreshKeys(), draft.new_chain()
    hidden = draft.first_step(tokens, batch["hidden_states"][0], positions, store, sight, rows)
    seen, loss = sight[rows], torch.zeros((), device=rows.device)
    sums: dict[str, Tensor] = {}
    for step, (counted, wanted) in enumerate(chains.steps):
        if step > 0:
            # Teacher forcing, clamped at the pack's end: what reads past it ends at no supervised token.
            following = tokens[(rows + step).clamp(max=len(tokens) - 1)]
            hidden = draft.chain_step(following, hidden, positions[rows] + step, store, seen, chain)
        normed, hidden = draft.read_out(hidden)
        total, hits = head.term(normed.index_select(0, counted), wanted)
        term = total * (ttt_decay**step / (len(counted) + EPSILON))
        loss = loss + term
        right = right & torch.zeros_like(right).index_put((counted,), hits)
        sums[f"loss_{step}_sum"] = term.detach()
        sums[f"full_acc_{step}_sum"] = right.sum().float()
        sums[f"full_acc_{step}_total"] = torch.full((), float(len(counted)), device=rows.device)
    return loss, sums


@dataclass(frozen=True)
class Chains:
    """Where chains start and which tokens they meet. S supervised tokens; R rows, the starts, in whole blocks of them.

    tokens [S]: the supervised indices; rows [R]: the indices p - s with p supervised and s below the number of steps, the
    last block filled with the first; supervised [R]: which of them are supervised themselves; steps: for each step, the
    rows [N] whose chain meets a supervised token there, and that token's number [N] of S.
    """

    tokens: Tensor
    rows: Tensor
    supervised: Tensor
    steps: list[tuple[Tensor, Tensor]]

    @classmethod
    def of(cls, mask: Tensor, ttt_steps: int, block: int = 1) -> Self:
        """Of a pack's loss mask [T], on its device; it is computed on the host, for which a GPU is waited for once."""
        here = mask.cpu()
        starts = torch.zeros_like(here)
        for step in range(ttt_steps):
            starts[: len(here) - step] |= here[step:]
        rows = starts.nonzero().flatten()
        number_of = torch.cumsum(here, 0) - 1
        steps = []
        for step in range(ttt_steps):
            ends = rows + step
            counted = ((ends < len(here)) & here[ends.clamp(max=len(here) - 1)]).nonzero().flatten()
            steps.append((counted, number_of[ends[counted]]))
        filled = -len(rows) % block if len(rows) else block
        supervised = torch.cat([here[rows], torch.zeros(filled, dtype=torch.bool)])
        rows = torch.cat([rows, rows[:1].expand(filled) if len(rows) else rows.new_zeros(filled)])

        def there(indices: Tensor) -> Tensor:
            return indices.to(mask.device, non_blocking=True)

        tokens = here.nonzero().flatten()
        return cls(there(tokens), there(rows), there(supervised), [(there(c), there(w)) for c, w in steps])


class PlainHead:
    """Head and loss on a CPU, all rows of a step at once."""

    def __init__(self, draft: DraftLayers, loss_config: LossConfig):
        self.draft, self.loss_config = draft, loss_config

    def aim(self, last: Tensor) -> None:
        """See `Head`."""
        weights = self.draft.weights
        with torch.no_grad():
            wide = last.float()
            normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.draft.shape.rms_norm_eps)
            self.targets = (weights["verifier_norm.weight"] * normed) @ weights["verifier_lm_head.weight"].t()
            self.likeliest = self.targets.argmax(dim=-1)
        self.row_loss = _row_loss(self.targets, self.loss_config)

    def term(self, normed: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """See `Head`."""
        logits = self.draft.logits(normed)
        return self.row_loss(logits, wanted).sum(), logits.argmax(dim=-1) == self.likeliest[wanted]


def _row_loss(targets: Tensor, loss_config: LossConfig) -> Callable[[Tensor, Tensor], Tensor]:
    """A function of draft logits [N, draft vocabulary] and of the targets' numbers [N], giving losses [N].

    The divergence alone is computed by us: what depends on the targets only once, not once a step.
    """
    if list(loss_config) == ["kl_div"]:
        weight = loss_config["kl_div"][1]
        log_shares = torch.log_softmax(targets, dim=-1)
        shares = log_shares.exp()
        negative_entropy = (shares * log_shares).sum(dim=-1)

        def divergence(logits: Tensor, wanted: Tensor) -> Tensor:
            return weight * (negative_entropy[wanted] + _CrossEntropy.apply(logits, shares[wanted]))

        return divergence

    def as_speculators(logits: Tensor, wanted: Tensor) -> Tensor:
        terms = [weight * fn(logits[None], targets[wanted][None])[0] for fn, weight in loss_config.values()]
        return torch.stack(terms).sum(dim=0)

    return as_speculators


class _CrossEntropy(torch.autograd.Function):
    """-Σ shares · log_softmax(logits) a row, [R]; its gradient is softmax(logits) - shares (as in losses/fused.py).

    Autograd would keep and pass over four buffers of [R, draft vocabulary] where this takes one.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, shares: Tensor) -> Tensor:
        log_q = torch.log_softmax(logits, dim=-1)
        ctx.save_for_backward(log_q, shares)
        return -torch.bmm(shares[:, None], log_q[:, :, None])[:, 0, 0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        log_q, shares = ctx.saved_tensors
        return log_q.exp().sub_(shares).mul_(gradient[:, None]), None
