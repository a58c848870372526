"""The vocabulary keeps special tokens."""

import numpy as np

from tasks.vocabulary import choose


def test_special_tokens_are_forced_into_the_vocabulary() -> None:
    counts = np.array([9, 0, 5, 7, 0, 8, 0, 0])
    assert choose(counts, [6, 7], 5).tolist() == [0, 3, 5, 6, 7]
    assert choose(counts, [6], 7).tolist() == [0, 1, 2, 3, 4, 5, 6], "unused ones fill up by id"
    assert choose(counts, [], 8).tolist() == list(range(8))
