"""Degenerate repetition in token ids."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.repetition import LONGEST_PERIOD, NGRAM, SHORTEST, answers_of, repetition


def measured(*samples: tuple[list[int], list[int]]) -> tuple[list[float], list[int]]:
    ids = np.concatenate([np.array(sample[0], np.int32) for sample in samples])
    mask = np.concatenate([np.array(sample[1], np.uint8) for sample in samples])
    share, loop = repetition(ids, mask, np.cumsum([0, *(len(sample[0]) for sample in samples)]))
    return share.round(3).tolist(), loop.tolist()


def test_answers_end_with_their_sample() -> None:
    mask = np.array([0, 1, 1, 0, 1, 1, 1, 1], np.uint8)
    assert answers_of(mask, np.array([0, 6, 8])).tolist() == [-1, 0, 0, -1, 1, 1, 2, 2]


def test_loops_and_repeated_sentences_are_measured_and_fresh_text_is_not() -> None:
    rng = np.random.default_rng(0)
    fresh = rng.integers(0, 50_000, 200).tolist()
    sentence = rng.integers(0, 50_000, 90).tolist()
    numbered = [token for i in range(10) for token in (*sentence[:18], i)]
    share, loop = measured(
        (fresh, [1] * 200),
        ([7] * 100, [1] * 100),
        (sentence[:20] * 10, [1] * 200),
        (numbered, [1] * len(numbered)),
        (sentence * 2, [0] * 90 + [1] * 90),
        ([5] * (SHORTEST - 1), [1] * (SHORTEST - 1)),
    )
    assert share == pytest.approx([0, 0.99, 0.9, 9 * 18 / 190, 0, 0], abs=1e-3), "a prompt may be said again"
    assert loop == [0, 99, 180, 18, 0, 0], "an answer under the shortest length is not judged"


def slow(ids: list[int]) -> tuple[float, int]:
    """The same measures of one answer, the slow way."""
    seen: set[tuple[int, ...]] = set()
    covered: set[int] = set()
    for i in range(len(ids) - NGRAM + 1):
        gram = tuple(ids[i : i + NGRAM])
        if gram in seen:
            covered |= set(range(i, i + NGRAM))
        seen.add(gram)
    longest = 0
    for period in range(1, LONGEST_PERIOD + 1):
        run = 0
        for i in range(period, len(ids)):
            run = run + 1 if ids[i] == ids[i - period] else 0
            longest = max(longest, run)
    return len(covered) / len(ids), longest


ANSWER = st.tuples(st.integers(1, 3), st.integers(SHORTEST, 150), st.integers(0, 2**16), st.integers(0, 5))


@settings(max_examples=40, deadline=None)
@given(answers=st.lists(ANSWER, min_size=1, max_size=4))
def test_the_fast_measures_are_the_slow_ones(answers: list[tuple[int, int, int, int]]) -> None:
    samples, expected = [], []
    for kinds, length, seed, prompt in answers:
        ids = np.random.default_rng(seed).integers(0, kinds + 1, prompt + length).tolist()
        samples.append((ids, [0] * prompt + [1] * length))
        expected.append(slow(ids[prompt:]))
    share, loop = measured(*samples)
    np.testing.assert_allclose(share, [one[0] for one in expected], atol=1e-3)
    assert loop == [one[1] for one in expected]
