"""How sure an acceptance length of some answers is, from what their cases say."""

from collections.abc import Sequence

from kimi_adapters.acceptance_interval import interval
from kimi_adapters.acceptance_length import Acceptance


def length_interval(cases: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """The 95% interval of the acceptance length of answers of (tokens, verifier steps)."""
    resamples = max(500, min(10_000, 20_000_000 // len(cases)))  # their weights take 160 MB at most up to 40,000 answers
    return interval([Acceptance(*case, ()) for case in cases], resamples=resamples)
