"""A draft for tests of what comes after drafting: it needs no training, and its acceptance is known."""

from types import SimpleNamespace
from typing import Any

import torch

from tests.engine_endpoint import Engine


class Prophet:
    """A draft that knows the answers and is wrong about every fifth token: `DraftRunner`'s part in decoding."""

    shape = SimpleNamespace(layer_ids=[1], num_layers=0, num_kv_heads=1, head_dim=1)
    device, dtype = torch.device("cpu"), torch.float32

    def __init__(self, known: dict[tuple[int, ...], list[int]]) -> None:
        self.known = known

    @classmethod
    def of(cls, engine: Engine, rows: list[dict[str, Any]], most: int) -> Any:
        """One that knows what an engine answers to the prompts of ``rows``."""
        prompts = [engine.prompt(row["messages"]) for row in rows]
        return cls({tuple(prompt): engine.answer(prompt, most, 0.0, 0)[0] for prompt in prompts})

    def feed(self, aux: Any, tokens: list[int], cache: Any, rows: torch.Tensor | None = None) -> torch.Tensor:
        """Notes the tokens beside the cache; the states are none."""
        if not cache.length:
            cache.tokens = [[] for _ in cache.lengths]
        slots = torch.arange(cache.length, cache.length + len(tokens))
        for owner, token in zip(cache.owners(slots).tolist(), tokens, strict=True):
            cache.tokens[owner].append(token)
        cache.length += len(tokens)
        return torch.zeros(1 if rows is None else len(rows), 1)

    def propose(self, states: torch.Tensor, slots: torch.Tensor, k: int, cache: Any, choose: Any) -> torch.Tensor:
        """What comes after each sequence, but for every fifth token."""
        return torch.tensor([self._after(cache.tokens[owner], k) for owner in cache.owners(slots).tolist()])

    def _after(self, told: list[int], k: int) -> list[int]:
        prompt, answer = next((p, a) for p, a in self.known.items() if tuple(told[: len(p) - 1]) == p[1:])
        done = len(told) - (len(prompt) - 1)
        truth = [*answer[done : done + k], *[0] * k][:k]
        return [token + 1 if (done + place) % 5 == 3 else token for place, token in enumerate(truth)]
