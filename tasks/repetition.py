"""Degenerate repetition, measured in token ids: answers that say again what they have said, and loops."""

import numpy as np

NGRAM = 8
SHORTEST = 64  # tokens of an answer; below it a list or a refrain is most of the text
LONGEST_PERIOD = 64
_BASE = np.uint64(0x9E3779B97F4A7C15)


def answers_of(mask: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The number of the answer (a run of supervised tokens inside one sample) that each token is in; -1: in none. I64 [T]."""
    supervised = mask > 0
    begins = supervised.copy()
    begins[1:] &= ~supervised[:-1]
    first = offsets[:-1][np.diff(offsets) > 0]
    begins[first] = supervised[first]
    return np.where(supervised, np.cumsum(begins) - 1, -1)


def repetition(ids: np.ndarray, mask: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What repeats in each sample, over its answers of ``SHORTEST`` tokens and more.

    First the share of all its supervised tokens that lie in an ``NGRAM`` which came before in the same answer, F32 [n]; then
    the longest run of tokens that each equal the one a fixed period, at most ``LONGEST_PERIOD``, before, I32 [n].
    """
    answer = answers_of(mask, offsets)
    owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    lengths = np.bincount(answer[answer >= 0], minlength=1)
    answer = np.where((answer >= 0) & (lengths[answer] >= SHORTEST), answer, -1)
    supervised = np.bincount(owner, mask > 0, len(offsets) - 1)
    covered = np.bincount(owner, _in_earlier_ngram(ids, answer), len(offsets) - 1)
    share = (covered / np.maximum(supervised, 1)).astype(np.float32)
    return share, _longest_loops(ids, answer, owner, len(offsets) - 1)


def _in_earlier_ngram(ids: np.ndarray, answer: np.ndarray) -> np.ndarray:
    """Tokens that lie in a second or later occurrence of an n-gram within their answer, BOOL [T]."""
    count = len(ids) - NGRAM + 1
    covered = np.zeros(len(ids) + 1, np.int64)
    if count < 1:
        return covered[:-1] > 0
    whole = np.flatnonzero((answer[:count] >= 0) & (answer[:count] == answer[NGRAM - 1 :]))
    key = answer[whole].astype(np.uint64)  # a polynomial hash; 64 bits over one shard, so a chance match does not happen
    for place in range(NGRAM):
        key = key * _BASE + ids[whole + place].astype(np.uint64) + np.uint64(1)
    order = np.argsort(key, kind="stable")
    again = whole[order[1:][key[order[1:]] == key[order[:-1]]]]
    covered[again] += 1
    covered[again + NGRAM] -= 1
    return np.cumsum(covered)[:-1] > 0


def _longest_loops(ids: np.ndarray, answer: np.ndarray, owner: np.ndarray, samples: int) -> np.ndarray:
    longest = np.zeros(samples, np.int32)
    for period in range(1, min(LONGEST_PERIOD, len(ids) - 1) + 1):
        same = (ids[period:] == ids[:-period]) & (answer[period:] >= 0) & (answer[period:] == answer[:-period])
        edges = np.flatnonzero(np.diff(same, prepend=False, append=False))
        begins, ends = edges[::2], edges[1::2]
        np.maximum.at(longest, owner[begins + period], (ends - begins).astype(np.int32))
    return longest
