"""Acceptance counts, the same for real decoding and for replay."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Acceptance:
    """What draft-and-verify did on one answer, or on several added up.

    `tokens`: tokens emitted after the one that the prefill gives, each step's bonus token included, none past a stop
    token or a length limit. `steps`: verifier steps, the prefill not counted. `accepted[i]`: steps whose i-th
    proposal was accepted and emitted, as its predecessors were.
    """

    tokens: int
    steps: int
    accepted: tuple[int, ...]

    def __add__(self, other: "Acceptance") -> "Acceptance":
        accepted = tuple(a + b for a, b in zip(self.accepted, other.accepted, strict=True))
        return Acceptance(self.tokens + other.tokens, self.steps + other.steps, accepted)

    @property
    def length(self) -> float:
        """Acceptance length: tokens a verifier step, between 1 and k + 1; NaN where no step was made."""
        return self.tokens / self.steps if self.steps else float("nan")

    @property
    def rates(self) -> tuple[float, ...]:
        """The share of steps in which each proposal was accepted."""
        return tuple(count / self.steps if self.steps else float("nan") for count in self.accepted)


def leading_matches(proposals: Sequence[int], truth: Sequence[int]) -> int:
    """How many proposals, from the first on, equal the true tokens; one that has none beside it does not."""
    pairs = zip(proposals, truth, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(proposals), len(truth)))


def total(results: Sequence[Acceptance], k: int) -> Acceptance:
    """The sum; of nothing, zeros for `k` positions."""
    return sum(results, Acceptance(0, 0, (0,) * k))
