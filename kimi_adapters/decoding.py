"""Draft-and-verify decoding with a real verifier and a real draft, greedy or sampled, of prompts side by side."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kimi_adapters.acceptance_length import Acceptance
from kimi_adapters.draft_runner import PROPOSE_ROWS, DraftRunner
from kimi_adapters.draft_sequences import SequenceCache
from kimi_adapters.token_choice import Greedy, StepChoices, TokenChoice
from kimi_adapters.verifier import Verifier

# Prompts at once, since a step of one reads all weights for k + 1 tokens; and their tokens, which bound the cache: 4.3 GB of an
# 8B Llama's in float32.
ROWS, TOKENS = 32, 16_384
TIE = 1e-5  # of the largest logit: sums of some hundred float32 products, taken in another order, differ by a tenth of it


@dataclass(frozen=True)
class DecodeResult:
    """`output`: the answer's token ids, the prefill's token first, a stop token that was reached last.

    With the prompt's ids before it, it is what replay takes.
    """

    output: list[int]
    acceptance: Acceptance


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

    The outputs are those of plain greedy decoding, or with `token_choice.Sampling` as likely as the verifier's own sampling
    makes them. A step emits the proposals that stay and one token of the verifier's (Leviathan et al. 2023), whose cache is
    rolled back to what was emitted. `progress` is called with (prompts finished, prompts). UserError when prompt and answer do
    not fit the verifier's context.
    """
    batch = _Batch(verifier, draft, prompts, k, max_new_tokens, stop_ids, choices or [Greedy() for _ in prompts])
    while batch.active:
        batch.step()
        if progress:
            progress(len(prompts) - len(batch.active), len(prompts))
    return [one.result() for one in batch.answers]


def side_by_side(prompts: Sequence[Sequence[int]], max_new_tokens: int) -> Iterator[slice]:
    """The prompts in runs that `decode_all` takes at once: ROWS or, where they are long, as many as have TOKENS together."""
    start = 0
    while start < len(prompts):
        stop, longest = start, 0
        while stop < min(len(prompts), start + ROWS):
            longest = max(longest, len(prompts[stop]) + max_new_tokens)
            if stop > start and (stop + 1 - start) * longest > TOKENS:
                break
            stop += 1
        yield slice(start, stop)
        start = stop


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

    def result(self) -> DecodeResult:
        return DecodeResult(self.output, Acceptance(len(self.output) - 1, self.steps, tuple(self.accepted)))


class _Batch:
    """Answers on their way. `active` are those that go on: row by row of the verifier's cache, and of the draft's `_states`."""

    def __init__(
        self,
        verifier: Verifier,
        draft: DraftRunner,
        prompts: Sequence[Sequence[int]],
        k: int,
        max_new_tokens: int,
        stop_ids: Collection[int],
        choices: Sequence[TokenChoice],
    ):
        if len(prompts) > PROPOSE_ROWS:
            raise ValueError(f"{len(prompts)} prompts at once; give at most {PROPOSE_ROWS}")
        self._verifier, self._draft = verifier, draft
        self._k, self._max_new_tokens, self._stop_ids = k, max_new_tokens, stop_ids
        self.answers = [_Answer(number, choice, [0] * k) for number, choice in enumerate(choices)]
        longest = max(map(len, prompts)) + max_new_tokens
        self._cache = verifier.new_cache(len(prompts), max(longest, min(longest + k, verifier.config.max_position_embeddings)))
        self._fed = SequenceCache(draft, sum(map(len, prompts)) + len(prompts) * max_new_tokens, len(prompts))
        self._prefill(prompts)

    def _prefill(self, prompts: Sequence[Sequence[int]]) -> None:
        """Each prompt's first token. The draft takes prompts one by one: of all at once each would be scored against all."""
        longest = max(map(len, prompts))
        padded = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts])
        step = self._verifier.forward(padded, self._cache, self._draft.shape.layer_ids)
        self._cache.truncate([len(prompt) for prompt in prompts])
        last = step.last[torch.arange(len(prompts)), [len(prompt) - 1 for prompt in prompts]]
        first = StepChoices([answer.choice for answer in self.answers]).first(self._verifier.logits(last))
        states = []
        for row, (answer, prompt, token) in enumerate(zip(self.answers, prompts, first, strict=True)):
            answer.output.append(token)
            self._fed.place([row] * len(prompt))
            states.append(self._draft.feed(step.aux[row, : len(prompt)], [*prompt[1:], token], self._fed))
        self.active = self.answers
        rows = self._going()
        self._states = torch.cat(states)[rows]
        self._keep(rows)

    def step(self) -> None:
        """Proposals, the verifier's judgement of them, and what was emitted to both caches."""
        width = min(self._k, self._cache.capacity - 1 - int(self._cache.lengths.max()))
        choices = StepChoices([answer.choice for answer in self.active])
        proposals = self._propose(width, choices)
        verified = self._cache.lengths.tolist()
        tokens = [[answer.output[-1], *proposed] for answer, proposed in zip(self.active, proposals, strict=True)]
        step = self._verifier.forward(torch.tensor(tokens), self._cache, self._draft.shape.layer_ids)
        logits = self._verifier.logits(step.last)
        emitted = []
        for answer, (chosen, matches) in zip(self.active, choices.judge(proposals, logits), strict=True):
            emitted.append(until_stop(chosen[: self._max_new_tokens - len(answer.output)], self._stop_ids))
            answer.note(emitted[-1], matches)
        self._cache.truncate([before + len(new) for before, new in zip(verified, emitted, strict=True)])
        rows = self._going()
        if rows:
            self._states = self._feed(rows, step.aux, emitted)
        self._keep(rows)

    def _going(self) -> list[int]:
        """Rows whose answers have not ended."""
        return [
            row
            for row, answer in enumerate(self.active)
            if len(answer.output) < self._max_new_tokens and answer.output[-1] not in self._stop_ids
        ]

    def _keep(self, rows: Sequence[int]) -> None:
        self._cache.keep(rows)
        self.active = [self.active[row] for row in rows]

    def _propose(self, k: int, choices: StepChoices) -> list[list[int]]:
        """The proposals of each answer after what is known of it, each by its own choice."""
        last = torch.tensor([self._fed.last[answer.number] for answer in self.active])
        proposals: list[list[int]] = self._draft.propose(self._states, last, k, self._fed, choices.propose).tolist()
        return proposals

    def _feed(self, rows: Sequence[int], aux: Tensor, emitted: Sequence[Sequence[int]]) -> Tensor:
        """What was emitted in these rows goes to the draft; gives the state of each one's last token."""
        known = torch.cat([aux[row, : len(emitted[row])] for row in rows])
        self._fed.place([self.active[row].number for row in rows for _ in emitted[row]])
        last = torch.tensor([len(emitted[row]) for row in rows]).cumsum(0) - 1
        return self._draft.feed(known, [token for row in rows for token in emitted[row]], self._fed, last)


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
