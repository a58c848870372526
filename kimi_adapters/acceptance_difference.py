"""How sure it is that one draft's acceptance length is above another's on the same samples."""

from dataclasses import dataclass

import numpy as np

_AT_ONCE = 4_000_000  # weights drawn at a time: 32 MB


@dataclass(frozen=True)
class Difference:
    """Acceptance lengths of a candidate and of a champion over ``samples``, and the interval of their difference.

    NaNs where there is no sample.
    """

    samples: int
    candidate: float
    champion: float
    low: float
    high: float

    @property
    def value(self) -> float:
        """The candidate's acceptance length minus the champion's."""
        return self.candidate - self.champion


def paired_difference(counts: np.ndarray, share: float = 0.95, resamples: int = 2_000, seed: int = 0) -> Difference:
    """Percentile bootstrap of the difference, resampling SAMPLES, of which each keeps its two results together.

    ``counts`` I64 [n, 4]: tokens and steps of the candidate, tokens and steps of the champion on one sample. Hard samples are
    hard for both drafts, so that the pairs say more than two intervals do. Lengths are ratios of sums in each resample (Efron
    and Tibshirani 1993, ch. 8 and 13).
    """
    counts = counts[(counts[:, 1] > 0) & (counts[:, 3] > 0)].astype(np.int64)
    if not len(counts):
        return Difference(0, *[float("nan")] * 4)
    generator = np.random.Generator(np.random.PCG64(seed))
    even = np.full(len(counts), 1 / len(counts))
    drawn = []
    step = max(1, _AT_ONCE // len(counts))
    for start in range(0, resamples, step):
        weights = generator.multinomial(len(counts), even, size=min(step, resamples - start))
        sums = weights @ counts
        drawn.append(sums[:, 0] / sums[:, 1] - sums[:, 2] / sums[:, 3])
    low, high = np.quantile(np.concatenate(drawn), [(1 - share) / 2, (1 + share) / 2])
    total = counts.sum(axis=0)
    return Difference(len(counts), float(total[0] / total[1]), float(total[2] / total[3]), float(low), float(high))
