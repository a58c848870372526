"""The training-time-test loss of a pack whose head runs over supervised tokens only, a chunk at a time.

The layers run as in speculators' Eagle3DraftModel.forward (0.9), over every index and by its own modules: the steps are
teacher-forced, so that none of them reads logits. Head, loss and accuracy then take the supervised tokens in chunks. The
head's gradient is computed beside its value (the loss is a weighted sum of rows), so that no logits outlive their chunk:
the forward keeps nothing of [T, draft vocabulary], where speculators' eager loss keeps two float32 buffers of it a step.
Loss, gradients and accuracies are those of the forward; tests hold them to it.
"""

from collections.abc import Callable
from typing import Any

import torch
from speculators.losses import LossConfig
from speculators.models.eagle3 import Eagle3DraftModel
from speculators.models.eagle3.attention import extend_dense_mask_for_draft_tokens, extend_mask_for_draft_tokens
from torch import Tensor
from transformers import DynamicCache

from kimi_adapters.packing import Batch
from kimi_adapters.ttt import EPSILON

CHUNK = 1024  # rows of the head at once: 131 MB a float32 buffer at 32,000 draft tokens
RowLoss = Callable[[Tensor, Tensor], Tensor]


def head_rows_loss(
    model: Eagle3DraftModel, batch: Batch, ttt_steps: int, ttt_decay: float, loss_config: LossConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """(loss, sums) of one pack, as `ttt.ttt_loss` gives them, by the model's own modules; under autocast on CUDA."""
    layers = _compiled_layers if batch["input_ids"].is_cuda else step_states
    states = layers(model, batch, ttt_steps)

    def row_loss(logits: Tensor, targets: Tensor) -> Tensor:
        return torch.stack([weight * fn(logits[None], targets[None])[0] for fn, weight in loss_config.values()]).sum(dim=0)

    mask, last = batch["loss_mask"][0].bool(), batch["verifier_last_hidden_states"][0]
    terms, right, counted = _HeadLoss.apply(
        model, last, mask, row_loss, ttt_decay, model.lm_head.weight, *(state[0] for state in states)
    )
    sums: dict[str, Tensor] = {}
    for step in range(ttt_steps):
        sums[f"loss_{step}_sum"] = terms[step].detach()
        sums[f"full_acc_{step}_sum"], sums[f"full_acc_{step}_total"] = right[step], counted[step]
    return terms.sum(), sums


def step_states(model: Eagle3DraftModel, batch: Batch, ttt_steps: int) -> list[Tensor]:
    """What the head reads at each step, [1, T, H]."""
    tokens, positions = batch["input_ids"], batch["position_ids"]
    size = tokens.shape[1]
    flex = model._attn_impl == "simple_flex_attention"
    mask = model._build_attn_mask(batch["document_ids"][0], size, tokens.device)
    cache = DynamicCache()
    hidden = batch["hidden_states"]
    if model.input_norm is not None:
        hidden = model.input_norm(hidden)
    if model.fc_norm is not None:
        parts = hidden.chunk(len(model.fc_norm), dim=-1)
        hidden = torch.cat([norm(part) for norm, part in zip(model.fc_norm, parts, strict=True)], dim=-1)
    hidden = model.fc(hidden)
    states = []
    for step in range(ttt_steps):
        if step > 0:
            mask = extend_mask_for_draft_tokens(mask) if flex else extend_dense_mask_for_draft_tokens(mask, size)
        with torch.no_grad():
            embeds = model.embed_tokens(torch.cat([tokens[:, step:], tokens.new_zeros(1, step)], dim=-1))
        hidden = torch.cat([embeds, hidden], dim=-1)
        turned = model.rotary_emb(hidden, positions + step)
        for layer in model.layers:
            hidden = layer(
                hidden,
                attention_mask=mask,
                position_ids=positions + step,
                past_key_values=cache,
                cache_position=torch.arange(step * size, (step + 1) * size, device=tokens.device),
                position_embeddings=turned,
            )
        normed = model.norm(hidden)
        if model.config.norm_output:
            hidden = normed
        states.append(normed)
    return states


_compiled_layers = torch.compile(step_states)


class _HeadLoss(torch.autograd.Function):
    """States [T, H] of each step -> (weighed loss, right tokens, counted tokens), each [steps]."""

    @staticmethod
    def forward(
        ctx: Any,
        model: Eagle3DraftModel,
        last: Tensor,
        mask: Tensor,
        row_loss: RowLoss,
        ttt_decay: float,
        head: Tensor,
        *states: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        steps = len(states)
        supervised = mask.nonzero().flatten()
        weight = _for_products(head).requires_grad_(ctx.needs_input_grad[5])
        verifiers = _for_products(model.verifier_lm_head.weight)
        counted = torch.stack([mask[step:].sum() for step in range(steps)]).float()
        scales = ttt_decay ** torch.arange(steps, device=head.device) / (counted + EPSILON)
        terms, right = torch.zeros(2, steps, device=head.device)
        reached = torch.zeros_like(mask, dtype=torch.int64)  # how many steps of the chain from an index were right
        of_states = [torch.zeros_like(state) for state in states]
        of_head = torch.zeros_like(head) if weight.requires_grad else None
        for tokens in supervised.split(CHUNK):
            targets = torch.nn.functional.linear(model.verifier_norm(last[tokens]), verifiers)
            likeliest = targets.argmax(dim=-1)
            for step, state in enumerate(states):
                inside = tokens >= step
                rows = (tokens - step).clamp(min=0)
                with torch.enable_grad():
                    leaf = state[rows].detach().requires_grad_(True)
                    logits = torch.nn.functional.linear(leaf, weight)
                    term = (row_loss(logits, targets) * inside).sum() * scales[step]
                found = torch.autograd.grad(term, [leaf, weight] if of_head is not None else [leaf])
                of_states[step].index_add_(0, rows, found[0])  # what is not inside adds 0
                if of_head is not None:
                    of_head += found[1]
                terms[step] += term.detach()
                hit = (logits.argmax(dim=-1) == likeliest) & inside & mask[rows] & (reached[rows] == step)
                reached.index_add_(0, rows, hit.long())
                right[step] += hit.sum()
        ctx.save_for_backward(*of_states, *([] if of_head is None else [of_head]))
        ctx.steps = steps
        ctx.mark_non_differentiable(right, counted)
        return terms, right, counted

    @staticmethod
    def backward(ctx: Any, of_terms: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """The loss is the sum of the terms, so that all of them have one gradient."""
        saved = ctx.saved_tensors
        of_head = saved[ctx.steps] * of_terms[0] if len(saved) > ctx.steps else None
        return None, None, None, None, None, of_head, *(value * of_terms[0] for value in saved[: ctx.steps])


def _for_products(weight: Tensor) -> Tensor:
    """A weight in autocast's dtype, once: autocast itself keeps no casts of frozen weights, and would make one a chunk."""
    kind = weight.device.type
    return weight.detach().to(torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype)
