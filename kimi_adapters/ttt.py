"""The training-time-test loss of a pack, computed only where a supervised token counts.

speculators' Eagle3DraftModel.forward runs every index of a pack through every step, and the head and the loss over
all of them. Of T indices with a supervised share f this needs: keys and values of step 0 for all T, everything else
for about f · T rows, and nothing for padding. The loss, its gradients and the accuracies are those of the forward
(tests hold them to it), given documents whose first `ttt_steps` - 1 indices carry no loss, as `packing` makes them.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from speculators.losses import LossConfig
from torch import Tensor

from kimi_adapters.draft_layers import DraftLayers, FreshKeys

EPSILON = 1e-5  # speculators' loss reduction divides by the count plus this


def ttt_loss(
    draft: DraftLayers, batch: Mapping[str, Tensor], ttt_steps: int, ttt_decay: float, loss_config: LossConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """(loss, sums) of one pack: batch as `PackedShards.load` gives it, `draft` over the model's own parameters.

    The loss is the sum over steps of ttt_decay^step · the mean over supervised tokens. The sums are what
    speculators' metrics hold: loss_{s}_sum, full_acc_{s}_sum and full_acc_{s}_total, where a token counts as right at
    step s if its chain was right at every step up to s.
    """
    tokens, mask, positions = batch["input_ids"][0], batch["loss_mask"][0].bool(), batch["position_ids"][0]
    supervised = mask.nonzero().flatten()
    targets = _targets(draft, batch["verifier_last_hidden_states"][0, supervised])
    likeliest = targets.argmax(dim=-1)
    row_loss = _row_loss(targets, loss_config)
    target_of = torch.cumsum(mask, 0) - 1  # index into targets, for supervised indices
    rows = _rows(mask, ttt_steps)
    bias = attention_bias(batch["document_ids"][0])

    store, chain = FreshKeys(), draft.new_chain()
    hidden = draft.first_step(tokens, batch["hidden_states"][0], positions, store, bias, rows)
    right = mask[rows]
    bias = bias[rows]
    loss = torch.zeros((), device=mask.device)
    sums: dict[str, Tensor] = {}
    for step in range(ttt_steps):
        if step > 0:
            # Teacher forcing, clamped at the pack's end: what reads past it ends at no supervised token.
            following = tokens[(rows + step).clamp(max=len(tokens) - 1)]
            hidden = draft.chain_step(following, hidden, positions[rows] + step, store, bias, chain)
        normed, hidden = draft.read_out(hidden)
        ends = rows + step
        counted = (ends < len(mask)) & mask[ends.clamp(max=len(mask) - 1)]
        logits, wanted = draft.logits(normed[counted]), target_of[ends[counted]]
        term = row_loss(logits, wanted).sum() * ttt_decay**step / (counted.sum() + EPSILON)
        loss = loss + term
        hit = torch.zeros_like(right)
        hit[counted] = logits.argmax(dim=-1) == likeliest[wanted]
        right = right & hit
        sums[f"loss_{step}_sum"] = term.detach()
        sums[f"full_acc_{step}_sum"] = right.sum().float()
        sums[f"full_acc_{step}_total"] = counted.sum().float()
    return loss, sums


def attention_bias(document_ids: Tensor) -> Tensor:
    """[T, T] float32: 0 where an index sees another (its own document, not later; always itself), -inf elsewhere."""
    index = torch.arange(len(document_ids), device=document_ids.device)
    same = (document_ids[:, None] == document_ids[None]) & (document_ids[:, None] != -1)
    seen = (same & (index[:, None] >= index[None])) | (index[:, None] == index[None])
    return torch.zeros(seen.shape, device=document_ids.device).masked_fill_(~seen, float("-inf"))


@torch.no_grad()
def _targets(draft: DraftLayers, last: Tensor) -> Tensor:
    """The verifier's logits over the draft vocabulary, from the states that enter its final norm: norm, then head."""
    wide = last.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + draft.shape.rms_norm_eps)
    normed = draft.weights["verifier_norm.weight"] * normed
    return normed @ draft.weights["verifier_lm_head.weight"].t()


def _row_loss(targets: Tensor, loss_config: LossConfig) -> Callable[[Tensor, Tensor], Tensor]:
    """A function of draft logits [R, draft vocabulary] and of the targets' numbers [R], giving losses [R].

    The divergence alone is computed by us: what depends on the targets only once, not once a step.
    """
    if list(loss_config) == ["kl_div"] and targets.device.type == "cpu":
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


def _rows(mask: Tensor, ttt_steps: int) -> Tensor:
    """The indices at which a chain starts that meets a supervised token: all p - s with p supervised, s < ttt_steps."""
    starts = torch.zeros_like(mask)
    for step in range(ttt_steps):
        starts[: len(mask) - step] |= mask[step:]
    return starts.nonzero().flatten()
