"""One run of prompts through an engine's chat route: answers, time, and what its counters say of this run alone."""

import time
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from errors import UserError
from kimi_adapters.engine_answers import Answer
from kimi_adapters.engine_client import EngineClient
from kimi_adapters.engine_metrics import Counters
from kimi_adapters.engine_requests import RequestFailed
from tasks.repetition import SHORTEST, repetition

_SETTLED_IN = 20.0  # seconds that counters may lag behind answers
_STILL = 1.0  # seconds without a token, after which nobody is being answered
_SHORTEST = 24  # tokens of an answer that can loop: an engine is asked for fewer than validation wants
_RUNS = 3  # of the same prompts, where answers have to be asked for again


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
    """Ask every prompt once; all of them again where one had to be repeated, which the engine counted twice.

    ``UserError``: one has no answer, each run had repeats, or the engine answered somebody else meanwhile.
    """
    for _ in range(_RUNS):
        repeats, before = client.repeats, Counters.read(client.metrics())
        answers, seconds = _ask_all(client, rows, temperature, max_new_tokens, seed)
        if client.repeats == repeats:
            return EngineRun(answers, seconds, _settled(client, before, sum(answer.tokens for answer in answers)))
        _wait_until_still(client)
    raise UserError(
        f"answers of the engine at {client.url} had to be asked for again in each of {_RUNS} runs, so that its counters are of "
        "more than our answers: see its log, or raise endpoint.timeout"
    )


def _ask_all(
    client: EngineClient, rows: list[dict[str, Any]], temperature: float, max_new_tokens: int, seed: int
) -> tuple[list[Answer], float]:
    """The answers, and the seconds that they all took."""
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
    return [answers[number] for number in range(len(rows))], time.monotonic() - began


def _wait_until_still(client: EngineClient) -> None:
    """An answer that nobody waits for any more may still be written, and counted."""
    deadline = time.monotonic() + _SETTLED_IN
    counted = None
    while (now := Counters.read(client.metrics()).generated) != counted and time.monotonic() < deadline:
        counted = now
        time.sleep(_STILL)


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


def degenerate(run: EngineRun, max_repetition: float, max_loop: int) -> list[bool] | None:
    """Which answers of ``_SHORTEST`` tokens and more say again and again what they have said, by validation's measures; None
    where the engine gives no token ids."""
    given = [answer.ids for answer in run.answers]
    if None in given:
        return None
    padded = [_padded(ids or []) for ids in given]
    joined, offsets = np.array([*chain(*padded)], np.int32), np.cumsum([0, *map(len, padded)])
    covered, loops = repetition(joined, np.ones(len(joined), np.uint8), offsets)
    share = covered * np.diff(offsets) / [max(1, len(ids or [])) for ids in given]
    return [bool(one) for one in (share > max_repetition) | (loops > max_loop)]


def _padded(ids: list[int]) -> list[int]:
    """As long as validation's measures want an answer, by tokens that repeat nothing."""
    return [*ids, *range(len(ids) - SHORTEST, 0)] if len(ids) >= _SHORTEST else ids
