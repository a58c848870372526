"""One run of prompts through an engine's chat route: answers, time, and what its counters say of this run alone."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from errors import UserError
from kimi_adapters.engine_answers import Answer
from kimi_adapters.engine_client import EngineClient
from kimi_adapters.engine_metrics import Counters
from kimi_adapters.engine_requests import RequestFailed
from tasks.repetition import repetition

_SETTLED_IN = 20.0  # seconds that counters may lag behind answers


@dataclass(frozen=True)
class EngineRun:
    """Answers in the prompts' order, the seconds that they all took, the counters' difference."""

    answers: list[Answer]
    seconds: float
    counters: Counters

    @property
    def tokens(self) -> int:
        """Tokens of all answers."""
        return sum(answer.tokens for answer in self.answers)

    @property
    def speed(self) -> float:
        """Tokens a second, over all that ran at once."""
        return round(self.tokens / self.seconds, 2)

    def equal(self, other: "EngineRun") -> list[bool]:
        """Which answers are the same, token for token (as text where the engine gives no ids)."""
        pairs = zip(self.answers, other.answers, strict=True)
        return [a.ids == b.ids if a.ids and b.ids else (a.text, a.reasoning) == (b.text, b.reasoning) for a, b in pairs]


def answer_all(
    client: EngineClient, rows: list[dict[str, Any]], *, temperature: float, max_new_tokens: int, seed: int = 0
) -> EngineRun:
    """Ask every prompt once. ``UserError``: one has no answer, or the engine answered somebody else meanwhile."""
    before = Counters.read(client.metrics())
    answers: dict[int, Answer] = {}

    def ask(number: int) -> Answer:
        messages = rows[number]["messages"]
        return client.chat(messages, max_tokens=max_new_tokens, temperature=temperature, seed=seed + number)

    began = time.monotonic()
    for number, found in client.each(ask, range(len(rows))):
        if isinstance(found, RequestFailed):
            client.stop()
            raise UserError(f"the engine at {client.url} gives prompt {rows[number]['id']} no answer ({found}): see its log")
        answers[number] = found
    seconds = time.monotonic() - began
    given = [answers[number] for number in range(len(rows))]
    return EngineRun(given, seconds, _settled(client, before, sum(answer.tokens for answer in given)))


def _settled(client: EngineClient, before: Counters, tokens: int) -> Counters:
    """The counters' difference once it holds our answers, which must be all that it holds."""
    deadline = time.monotonic() + _SETTLED_IN
    while (found := Counters.read(client.metrics()).since(before)).generated < tokens and time.monotonic() < deadline:
        time.sleep(0.1)
    if found.generated != tokens:
        raise UserError(
            f"the engine at {client.url} counts {found.generated} tokens and our answers have {tokens}: others ask it, too; "
            "measure on one that nobody else uses"
        )
    return found


def degenerate(run: EngineRun, max_repetition: float, max_loop: int) -> list[bool]:
    """Which answers say again and again what they have said, by validation's measures; never those without token ids."""
    ids = [np.array(answer.ids or [], np.int32) for answer in run.answers]
    offsets = np.cumsum([0, *map(len, ids)])
    joined = np.concatenate(ids)
    share, loops = repetition(joined, np.ones(len(joined), np.uint8), offsets)
    return [bool(one) for one in (share > max_repetition) | (loops > max_loop)]
