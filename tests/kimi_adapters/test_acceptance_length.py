import math

import numpy as np

from kimi_adapters.acceptance_interval import interval
from kimi_adapters.acceptance_length import Acceptance, leading_matches, total


def test_sums_length_and_rates() -> None:
    both = total([Acceptance(6, 3, (2, 1)), Acceptance(4, 2, (1, 1))], 2)
    assert both == Acceptance(10, 5, (3, 2))
    assert both.length == 2.0 and both.rates == (0.6, 0.4)
    assert math.isnan(total([], 2).length) and total([], 2).accepted == (0, 0)


def test_leading_matches() -> None:
    assert leading_matches([1, 2, 3], [1, 2, 4, 5]) == 2
    assert leading_matches([1, 2, 3], [1]) == 1
    assert leading_matches([1], [2]) == 0
    assert leading_matches([], [2]) == 0


def test_interval_covers_the_true_length_about_as_often_as_it_says() -> None:
    source = np.random.default_rng(0)
    covered = 0
    for trial in range(200):
        steps = source.integers(10, 40, size=40)
        results = [Acceptance(int(n + source.binomial(n, 0.5)), int(n), (0,)) for n in steps]
        low, high = interval(results, resamples=400, seed=trial)
        covered += low <= 1.5 <= high
    assert 0.87 <= covered / 200 <= 0.99


def test_interval_is_seeded_and_ignores_answers_without_a_step() -> None:
    results = [Acceptance(5, 4, (1,)), Acceptance(9, 5, (4,)), Acceptance(3, 3, (0,))]
    assert interval(results, seed=1) == interval([*results, Acceptance(0, 0, (0,))], seed=1)
    low, high = interval(results)
    assert 1.0 <= low < 17 / 12 < high <= 1.8
    assert all(math.isnan(bound) for bound in interval([Acceptance(0, 0, (0,))]))
