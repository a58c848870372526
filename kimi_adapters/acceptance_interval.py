"""How sure an acceptance length is: its interval over prompts. Told in reports; no draft is chosen by it."""

from collections.abc import Sequence

import numpy as np

from kimi_adapters.acceptance_length import Acceptance


def interval(results: Sequence[Acceptance], share: float = 0.95, resamples: int = 10_000, seed: int = 0) -> tuple[float, float]:
    """Percentile bootstrap of the acceptance length, resampling PROMPTS: tokens of one answer are not independent.

    The ratio of sums is taken within each resample (Efron and Tibshirani 1993, ch. 13). NaNs without a step.
    """
    counts = np.array([(result.tokens, result.steps) for result in results if result.steps], dtype=np.int64)
    if not len(counts):
        return float("nan"), float("nan")
    generator = np.random.Generator(np.random.PCG64(seed))
    weights = generator.multinomial(len(counts), np.full(len(counts), 1 / len(counts)), size=resamples)
    sums = weights @ counts
    low, high = np.quantile(sums[:, 0] / sums[:, 1], [(1 - share) / 2, (1 + share) / 2])
    return float(low), float(high)
