"""Batched generation by the verifier: a preallocated cache, rows that finish make room for the next prompts."""

import os.path
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kimi_adapters.verifier import KVCache, Verifier

# New prompts wait until this share of the batch is free, so that they are prefilled together.
REFILL_SHARE = 0.25
SHARED_PREFIX_MIN = 8


@dataclass
class _Row:
    """A prompt in generation, its own stream of random numbers, its answer so far."""

    prompt: list[int]
    source: random.Random
    answer: list[int] = field(default_factory=list)


def generate(
    verifier: Verifier,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    stop_ids: Sequence[int],
    temperature: float = 0.0,
    seed: int = 0,
    batch_size: int = 48,
    progress: Callable[[int, int], None] | None = None,
) -> list[list[int]]:
    """The verifier's answers, as token ids, in the prompts' order; a stop token that was reached is part of them.

    Temperature 0 takes the likeliest token. Above it, each prompt draws from its own random stream, seeded by `seed`
    and its place, so that answers do not depend on the batch (but for rounding in the products). `progress` is called
    with (prompts finished, prompts). UserError when a prompt and its answer do not fit the verifier's context,
    ValueError when a prompt is empty.
    """
    if not all(prompts):
        raise ValueError("a prompt has no tokens")
    if not prompts or max_new_tokens < 1:
        return [[] for _ in prompts]
    rows = [_Row(list(prompt), random.Random(f"{seed}:{place}")) for place, prompt in enumerate(prompts)]
    # Longest first: prompts that are prefilled together are padded little.
    waiting = sorted(rows, key=lambda row: len(row.prompt))
    longest = len(waiting[-1].prompt) + max_new_tokens
    batch_size = min(batch_size, len(rows))
    cache = verifier.new_cache(batch_size, longest)
    cache.keep([])
    prefix = _prefill_prefix(verifier, rows)
    refill = max(1, int(batch_size * REFILL_SHARE))
    active: list[_Row] = []
    finished = 0
    while active or waiting:
        free = batch_size - len(active)
        if waiting and (free >= min(refill, len(waiting)) or not active):
            joining = [waiting.pop() for _ in range(min(free, len(waiting)))]
            last = _prefill(verifier, [row.prompt for row in joining], prefix, cache)
            active += joining
        else:
            joining = active
            ids = torch.tensor([[row.answer[-1]] for row in active])
            last = verifier.forward(ids, cache).last[:, -1]
        for row, token in zip(joining, _choose(verifier.logits(last), temperature, joining), strict=True):
            row.answer.append(token)
        kept = _kept([len(row.answer) < max_new_tokens and row.answer[-1] not in stop_ids for row in active])
        finished += len(active) - len(kept)
        cache.keep(kept)
        active = [active[place] for place in kept]
        if progress:
            progress(finished, len(rows))
    return [row.answer for row in rows]


def _prefill_prefix(verifier: Verifier, rows: Sequence[_Row]) -> KVCache | None:
    """A one-row cache of what all prompts begin with (the system turn, as a rule), computed once."""
    prefix = os.path.commonprefix([row.prompt for row in rows])
    # Each prompt keeps a token of its own: its state is what the first answer token is chosen from.
    length = min(len(prefix), min(len(row.prompt) for row in rows) - 1)
    if len(rows) < 2 or length < SHARED_PREFIX_MIN:
        return None
    cache = verifier.new_cache(1, length)
    verifier.forward(torch.tensor([prefix[:length]]), cache)
    return cache


def _prefill(verifier: Verifier, prompts: Sequence[Sequence[int]], prefix: KVCache | None, cache: KVCache) -> Tensor:
    """Appends the prompts' rows to `cache`; gives the state of each one's last token, [prompts, hidden]."""
    longest = max(len(prompt) for prompt in prompts)
    joining = verifier.new_cache(len(prompts), longest)
    start = 0
    if prefix is not None:
        joining.keep([])
        joining.extend(prefix, copies=len(prompts))
        start = int(prefix.lengths[0])
    padded = [[*prompt[start:], *[0] * (longest - len(prompt))] for prompt in prompts]
    last = verifier.forward(torch.tensor(padded), joining).last
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    joining.truncate(lengths)
    cache.extend(joining)
    return last[torch.arange(len(prompts)), lengths.to(last.device) - start - 1]


def _choose(logits: Tensor, temperature: float, rows: Sequence[_Row]) -> list[int]:
    """The next token of each row from logits [rows, vocab]: the likeliest, or one drawn by its own random number."""
    if temperature <= 0:
        return list(logits.argmax(dim=-1).tolist())
    reached = torch.softmax(logits.double() / temperature, dim=-1).cumsum(dim=-1)
    drawn = torch.tensor([[row.source.random()] for row in rows], dtype=torch.float64, device=logits.device)
    tokens = torch.searchsorted(reached, drawn * reached[:, -1:], right=True).squeeze(1)
    return list(tokens.clamp(max=logits.shape[1] - 1).tolist())


def _kept(running: Sequence[bool]) -> list[int]:
    """Places of the rows that still run, such that as few as possible move: the last ones fill the gaps."""
    places = [place for place, runs in enumerate(running) if runs]
    movers = [place for place in places if place >= len(places)]
    return [place if running[place] else movers.pop() for place in range(len(places))]
