"""A draft for tests of what comes after drafting: it needs no training, and its acceptance is known."""

from types import SimpleNamespace
from typing import Any

import torch

from tests.engine_endpoint import Engine


class Prophet:
    """A draft that knows the answers and is wrong about every fifth token: `DraftRunner`'s part in decoding."""

    shape = SimpleNamespace(layer_ids=[1])

    def __init__(self, known: dict[tuple[int, ...], list[int]]) -> None:
        self.known = known

    @classmethod
    def of(cls, engine: Engine, rows: list[dict[str, Any]], most: int) -> Any:
        """One that knows what an engine answers to the prompts of ``rows``."""
        prompts = [engine.prompt(row["messages"]) for row in rows]
        return cls({tuple(prompt): engine.answer(prompt, most, 0.0, 0)[0] for prompt in prompts})

    def new_cache(self, capacity: int) -> SimpleNamespace:
        return SimpleNamespace(length=0, tokens=[])

    def feed(self, aux: Any, tokens: list[int], cache: SimpleNamespace) -> None:
        cache.tokens += tokens
        cache.length += len(tokens)

    def propose(self, hidden: None, places: Any, k: int, cache: SimpleNamespace, choose: Any) -> torch.Tensor:
        answer = next(a for p, a in self.known.items() if tuple(cache.tokens[: len(p) - 1]) == p[1:])
        done = cache.length - (len(next(p for p, a in self.known.items() if a is answer)) - 1)
        truth = [*answer[done : done + k], *[0] * k][:k]
        return torch.tensor([[token + 1 if (done + place) % 5 == 3 else token for place, token in enumerate(truth)]])
