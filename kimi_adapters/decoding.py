"""Draft-and-verify decoding with a real verifier and a real draft, greedy or sampled, and its plain greedy twin."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kimi_adapters.acceptance_length import Acceptance
from kimi_adapters.draft_runner import PROPOSE_ROWS, DraftRunner
from kimi_adapters.draft_sequences import SequenceCache
from kimi_adapters.token_choice import Greedy, TokenChoice
from kimi_adapters.verifier import Verifier

# Prompts that callers give at once (a step of one prompt reads all weights for k + 1 tokens).
SIDE_BY_SIDE = 32
TIE = 1e-5  # of the largest logit: sums of some hundred float32 products, taken in another order, differ by a tenth of it


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
    """`decode_all` of one prompt."""
    return decode_all(verifier, draft, [prompt_ids], k, max_new_tokens, stop_ids, [choice or Greedy()])[0]


def decode_all(
    verifier: Verifier,
    draft: DraftRunner,
    prompts: Sequence[Sequence[int]],
    k: int,
    max_new_tokens: int,
    stop_ids: Collection[int],
    choices: Sequence[TokenChoice] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[DecodeResult]:
    """Decoding in which the draft proposes `k` tokens and one verifier step judges them all, by each prompt's own `choices`
    (None: greedily); the prompts go through the verifier side by side.

    The outputs are those of `greedy`, or with `token_choice.Sampling` as likely as the verifier's own sampling makes them. A
    step emits the proposals that stay and one token of the verifier's (Leviathan et al. 2023), whose cache is rolled back to
    what was emitted. `progress` is called with (prompts finished, prompts). UserError when prompt and answer do not fit the
    verifier's context.
    """
    if len(prompts) > PROPOSE_ROWS:
        raise ValueError(f"{len(prompts)} prompts at once; give at most {PROPOSE_ROWS}")
    answers = [_Answer(number, choice, [0] * k) for number, choice in enumerate(choices or [Greedy() for _ in prompts])]
    longest = max(map(len, prompts)) + max_new_tokens
    cache = verifier.new_cache(len(prompts), max(longest, min(longest + k, verifier.config.max_position_embeddings)))
    draft_cache = SequenceCache(draft, sum(map(len, prompts)) + len(prompts) * max_new_tokens, len(prompts))

    def ends(answer: _Answer) -> bool:
        return len(answer.output) >= max_new_tokens or answer.output[-1] in stop_ids

    padded = [[*prompt, *[0] * (longest - max_new_tokens - len(prompt))] for prompt in prompts]
    step = verifier.forward(torch.tensor(padded), cache, draft.shape.layer_ids)
    cache.truncate([len(prompt) for prompt in prompts])
    hidden = []
    for answer, prompt in zip(answers, prompts, strict=True):
        row, size = answer.number, len(prompt)
        answer.output.append(answer.choice.first(verifier.logits(step.last[row, size - 1])))
        known = [*prompt[1:], answer.output[0]]
        draft_cache.place([row] * size)
        hidden.append(draft.feed(step.aux[row, :size], known, draft_cache))
    active = [answer for answer in answers if not ends(answer)]
    states = torch.cat([hidden[answer.number] for answer in active]) if active else None
    cache.keep([answer.number for answer in active])
    while active and states is not None:
        width = min(k, cache.capacity - 1 - int(cache.lengths.max()))
        proposals = _propose(draft, active, states, width, draft_cache)
        verified = cache.lengths.tolist()
        tokens = [[answer.output[-1], *proposed] for answer, proposed in zip(active, proposals, strict=True)]
        step = verifier.forward(torch.tensor(tokens), cache, draft.shape.layer_ids)
        logits = verifier.logits(step.last)
        emitted = []
        for row, (answer, proposed) in enumerate(zip(active, proposals, strict=True)):
            chosen, matches = answer.choice.judge(proposed, logits[row])
            emitted.append(until_stop(chosen[: max_new_tokens - len(answer.output)], stop_ids))
            answer.note(emitted[-1], matches)
        cache.truncate([before + len(new) for before, new in zip(verified, emitted, strict=True)])
        going = [row for row, answer in enumerate(active) if not ends(answer)]
        states = _feed(draft, active, going, step.aux, emitted, draft_cache) if going else None
        cache.keep(going)
        active = [active[row] for row in going]
        if progress:
            progress(len(answers) - len(active), len(answers))
    return [DecodeResult(one.output, Acceptance(len(one.output) - 1, one.steps, tuple(one.accepted))) for one in answers]


@dataclass
class _Answer:
    """What one prompt, the draft cache's sequence `number`, has been answered so far."""

    number: int
    choice: TokenChoice
    accepted: list[int]
    output: list[int] = field(default_factory=list)
    steps: int = 0

    def note(self, emitted: Sequence[int], matches: int) -> None:
        """Counts a step in."""
        self.steps += 1
        for place in range(min(matches, len(emitted))):
            self.accepted[place] += 1
        self.output += emitted


def _propose(draft: DraftRunner, active: Sequence[_Answer], states: Tensor, k: int, cache: SequenceCache) -> list[list[int]]:
    """The proposals of each answer after what is known of it, each by its own choice."""

    def choose(logits: Tensor, targets: Tensor) -> Tensor:
        return torch.cat([one.choice.propose(logits[row : row + 1], targets) for row, one in enumerate(active)])

    last = torch.tensor([cache.last[answer.number] for answer in active])
    proposals: list[list[int]] = draft.propose(states, last, k, cache, choose).tolist()
    return proposals


def _feed(
    draft: DraftRunner,
    active: Sequence[_Answer],
    rows: Sequence[int],
    aux: Tensor,
    emitted: Sequence[Sequence[int]],
    cache: SequenceCache,
) -> Tensor:
    """What was emitted in these rows goes to the draft; gives the state of each one's last token."""
    known = torch.cat([aux[row, : len(emitted[row])] for row in rows])
    cache.place([active[row].number for row in rows for _ in emitted[row]])
    last = torch.tensor([len(emitted[row]) for row in rows]).cumsum(0) - 1
    return draft.feed(known, [token for row in rows for token in emitted[row]], cache, last)


def tied(verifier: Verifier, prompt_ids: Sequence[int], first: Sequence[int], second: Sequence[int]) -> bool:
    """Whether two outputs part where the verifier has their tokens equally likely, as far as float32 tells.

    Logits of one token in company of others are products of other shapes, and differ in their last bits.
    """
    pairs = list(zip(first, second, strict=False))
    place = next((place for place, (a, b) in enumerate(pairs) if a != b), None)
    if place is None:
        return False
    known = [*prompt_ids, *first[:place]]
    step = verifier.forward(torch.tensor([known]), verifier.new_cache(1, len(known)))
    logits = verifier.logits(step.last[0, -1])
    gap = (logits[first[place]] - logits[second[place]]).abs()
    return bool(gap <= TIE * logits.abs().max())


def until_stop(tokens: Sequence[int], stop_ids: Collection[int]) -> list[int]:
    """The tokens up to the first stop token, which is included."""
    stop = next((place for place, token in enumerate(tokens) if token in stop_ids), len(tokens) - 1)
    return list(tokens[: stop + 1])
