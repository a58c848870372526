"""Draft-and-verify decoding with a real verifier and a real draft, greedy or sampled, and its plain greedy twin."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from kimi_adapters.acceptance_length import Acceptance
from kimi_adapters.draft_runner import DraftRunner
from kimi_adapters.token_choice import Greedy, TokenChoice
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
    choice: TokenChoice | None = None,
) -> DecodeResult:
    """Decoding in which the draft proposes `k` tokens and one verifier step judges them all, by `choice` (None: greedily).

    The output is that of `greedy`, or with `token_choice.Sampling` as likely as the verifier's own sampling makes it. A step
    emits the proposals that stay and one token of the verifier's (Leviathan et al. 2023); both caches are rolled back to
    what was emitted. UserError when prompt and answer do not fit the verifier's context.
    """
    choice = choice or Greedy()
    capacity = len(prompt_ids) + max_new_tokens
    cache, draft_cache = verifier.new_cache(1, capacity), draft.new_cache(capacity)
    aux_ids = draft.shape.layer_ids
    accepted = [0] * k
    steps = 0

    step = verifier.forward(torch.tensor([list(prompt_ids)]), cache, aux_ids)
    output = [choice.first(verifier.logits(step.last[0, -1]))]
    hidden = draft.feed(step.aux[0], [*prompt_ids[1:], output[0]], draft_cache)
    while len(output) < max_new_tokens and output[-1] not in stop_ids:
        room = min(k, max_new_tokens - len(output))
        last = torch.tensor([draft_cache.length - 1])
        proposals = draft.propose(hidden, last, room, draft_cache, choice.propose)[0].tolist()
        verified = int(cache.lengths[0])
        step = verifier.forward(torch.tensor([[output[-1], *proposals]]), cache, aux_ids)
        tokens, matches = choice.judge(proposals, verifier.logits(step.last[0]))
        emitted = until_stop(tokens[: max_new_tokens - len(output)], stop_ids)
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
