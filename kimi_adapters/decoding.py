"""Greedy draft-and-verify decoding with a real verifier and a real draft, and its plain twin."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from kimi_adapters.acceptance_length import Acceptance, leading_matches
from kimi_adapters.draft_runner import DraftRunner
from kimi_adapters.verifier import Verifier


@dataclass(frozen=True)
class DecodeResult:
    """`output`: the answer's token ids, the prefill's token first, a stop token that was reached last.

    With the prompt's ids before it, it is what replay takes.
    """

    output: list[int]
    acceptance: Acceptance


def greedy(verifier: Verifier, prompt_ids: Sequence[int], max_new_tokens: int, stop_ids: Collection[int]) -> list[int]:
    """The likeliest token, one verifier step each, up to `max_new_tokens` or a stop token, which is included."""
    cache = verifier.new_cache(1, len(prompt_ids) + max_new_tokens)
    output: list[int] = []
    ids = list(prompt_ids)
    while len(output) < max_new_tokens and not (output and output[-1] in stop_ids):
        step = verifier.forward(torch.tensor([ids]), cache)
        ids = [int(verifier.logits(step.last[0, -1]).argmax())]
        output += ids
    return output


def decode(
    verifier: Verifier,
    draft: DraftRunner,
    prompt_ids: Sequence[int],
    k: int,
    max_new_tokens: int,
    stop_ids: Collection[int],
) -> DecodeResult:
    """Greedy decoding in which the draft proposes `k` tokens and one verifier step judges them all.

    The output is that of `greedy`. A step emits the proposals that equal the verifier's own choices, up to the first
    that does not, and the verifier's choice there (Leviathan et al. 2023, at temperature 0); both caches are rolled
    back to what was emitted. UserError when prompt and answer do not fit the verifier's context.
    """
    capacity = len(prompt_ids) + max_new_tokens
    cache, draft_cache = verifier.new_cache(1, capacity), draft.new_cache(capacity)
    aux_ids = draft.shape.layer_ids
    accepted = [0] * k
    steps = 0

    step = verifier.forward(torch.tensor([list(prompt_ids)]), cache, aux_ids)
    output = [int(verifier.logits(step.last[0, -1]).argmax())]
    hidden = draft.feed(step.aux[0], [*prompt_ids[1:], output[0]], draft_cache)
    while len(output) < max_new_tokens and output[-1] not in stop_ids:
        room = min(k, max_new_tokens - len(output))
        proposals = draft.propose(hidden, torch.tensor([draft_cache.length - 1]), room, draft_cache)[0].tolist()
        verified = int(cache.lengths[0])
        step = verifier.forward(torch.tensor([[output[-1], *proposals]]), cache, aux_ids)
        choices = verifier.logits(step.last[0]).argmax(dim=-1).tolist()
        matches = leading_matches(proposals, choices)
        emitted = until_stop(choices[: min(matches + 1, max_new_tokens - len(output))], stop_ids)
        steps += 1
        for place in range(min(matches, len(emitted))):
            accepted[place] += 1
        output += emitted
        cache.truncate([verified + len(emitted)])
        hidden = draft.feed(step.aux[0, : len(emitted)], emitted, draft_cache)
    return DecodeResult(output, Acceptance(len(output) - 1, steps, tuple(accepted)))


def until_stop(tokens: Sequence[int], stop_ids: Collection[int]) -> list[int]:
    """The tokens up to the first stop token, which is included."""
    stop = next((place for place, token in enumerate(tokens) if token in stop_ids), len(tokens) - 1)
    return list(tokens[: stop + 1])
