"""What becomes of each sample of a checked corpus: quarantine with its reasons, and the drop list across shards."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from tasks.checked_corpus import CheckedCorpus

LEAST_JUDGED = 8  # tokens; of fewer neither the median norm nor a mean score says anything


class Reason(StrEnum):
    """Why a sample is in quarantine; it may have several."""

    NOT_FINITE = "a state is not finite"
    OUTLYING_NORM = "outlying norm"
    REPEATED_ROWS = "repeated state rows"
    TOO_SHORT = "fewer than two tokens"
    OUT_OF_VOCABULARY = "token ids out of the vocabulary"
    NOTHING_SUPERVISED = "no supervised token"
    TOO_FEW_SUPERVISED = "too few supervised tokens"
    REPETITION = "degenerate repetition"
    LOW_SCORE = "low on-policy score of a greedy answer"
    LOW_AGREEMENT = "low argmax agreement of a greedy answer"


class Drop(StrEnum):
    """Why a sample that is fit is left out all the same."""

    DUPLICATE = "duplicate"
    IN_TRAIN = "held out, with a first user turn that train has"


@dataclass(frozen=True)
class NormLimits:
    """A state's norms over the corpus: the median, its robust deviation (of the logarithm), and the limits."""

    median: float
    deviation: float
    low: float
    high: float


def norm_limits(corpus: CheckedCorpus, settings: dict[str, Any]) -> dict[str, NormLimits]:
    """By state: median · exp(± max(deviations · 1.4826 · MAD of log norms, log ratio)), over the finite samples.

    Median and MAD, because a mean would follow the outliers; logarithms, because norms of layers differ by factors.
    """
    found = {}
    for name in corpus.states:
        logs = np.log(np.maximum(corpus.arrays[f"norm.{name}"][corpus.finite].astype(np.float64), 1e-30))
        middle = float(np.median(logs)) if len(logs) else 0.0
        deviation = 1.4826 * float(np.median(np.abs(logs - middle))) if len(logs) else 0.0
        reach = max(settings["norm_deviations"] * deviation, float(np.log(settings["norm_ratio"])))
        low, median, high = (float(np.exp(value)) for value in (middle - reach, middle, middle + reach))
        found[name] = NormLimits(median, deviation, low, high)
    return found


def reasons_of(corpus: CheckedCorpus, limits: dict[str, NormLimits], settings: dict[str, Any]) -> dict[Reason, np.ndarray]:
    """The samples that each reason holds for, BOOL [n]; copies of whole shards are not judged twice."""
    arrays = corpus.arrays
    outlying, repeated = np.zeros(len(corpus), bool), np.zeros(len(corpus), bool)
    for name in corpus.states:
        norms = arrays[f"norm.{name}"]
        with np.errstate(invalid="ignore"):
            outlying |= (norms < limits[name].low) | (norms > limits[name].high)
        repeated |= arrays[f"same.{name}"] > settings["max_repeated_rows"]
    judged = arrays["greedy"] & (arrays["scored"] >= LEAST_JUDGED)
    with np.errstate(invalid="ignore"):
        low_score = judged & (arrays["score"] < settings["min_score"])
    found = {
        Reason.NOT_FINITE: ~corpus.finite,
        Reason.OUTLYING_NORM: outlying & (arrays["tokens"] >= LEAST_JUDGED),
        Reason.REPEATED_ROWS: repeated & (arrays["tokens"] >= LEAST_JUDGED),
        Reason.TOO_SHORT: arrays["tokens"] < 2,
        Reason.OUT_OF_VOCABULARY: arrays["foreign"],
        Reason.NOTHING_SUPERVISED: arrays["supervised"] == 0,
        Reason.TOO_FEW_SUPERVISED: (arrays["supervised"] > 0) & (arrays["supervised"] < settings["min_supervised"]),
        Reason.REPETITION: (arrays["repetition"] > settings["max_repetition"]) | (arrays["loop"] > settings["max_loop"]),
        Reason.LOW_SCORE: low_score,
        Reason.LOW_AGREEMENT: judged & (arrays["agreed"] < settings["min_agreement"] * arrays["scored"]),
    }
    return {reason: chosen & ~corpus.copy for reason, chosen in found.items()}


def drops_of(corpus: CheckedCorpus, quarantined: np.ndarray) -> dict[Drop, np.ndarray]:
    """The samples to leave out though they are fit, BOOL [n].

    Of conversations with the same text one stays: the first in shard order that is not in quarantine, and a train copy
    before a held-out one. A held-out sample whose first user turn stands in train goes, too: train is the larger side, and a
    test that shares its question with the lesson measures memory.
    """
    fit = ~quarantined & ~corpus.copy
    duplicate = fit & _later_copies(corpus, fit)
    firsts = _codes(corpus.arrays["first"])
    train = firsts[fit & ~duplicate & ~corpus.arrays["held_out"]]
    in_train = fit & ~duplicate & corpus.arrays["held_out"] & np.isin(firsts, train[train >= 0])
    return {Drop.DUPLICATE: duplicate | corpus.copy, Drop.IN_TRAIN: in_train}


def _codes(hashes: np.ndarray) -> np.ndarray:
    """A number for each different hash of U8 [n, 16], I64 [n]; -1 for the hash of zeros, which stands for none."""
    halves = np.ascontiguousarray(hashes).view("<u8")
    order = np.lexsort((halves[:, 1], halves[:, 0]))
    rising = halves[order]
    codes = np.empty(len(halves), np.int64)
    codes[order] = np.cumsum(np.r_[0, (rising[1:] != rising[:-1]).any(axis=1)]) if len(halves) else []
    codes[(halves == 0).all(axis=1)] = -1
    return codes


def _later_copies(corpus: CheckedCorpus, fit: np.ndarray) -> np.ndarray:
    """The fit samples whose conversation has stood before, train first, BOOL [n].

    The windows of one conversation share its hash and come in order, so a copy begins where windows stop rising.
    """
    codes = _codes(corpus.arrays["hash"])
    known = np.flatnonzero(fit & (codes >= 0))
    held_out, window = corpus.arrays["held_out"][known], corpus.arrays["window"][known]
    order = np.lexsort((np.arange(len(known)), held_out, codes[known]))
    code, held_out, window = codes[known][order], held_out[order], window[order]
    begins = np.r_[True, code[1:] != code[:-1]][: len(code)]
    breaks = np.r_[False, (window[1:] <= window[:-1]) | (held_out[1:] != held_out[:-1])][: len(code)] & ~begins
    passed = np.cumsum(breaks)
    before = passed[np.maximum.accumulate(np.where(begins, np.arange(len(code)), 0))]
    later = np.zeros(len(corpus), bool)
    later[known[order]] = passed > before
    return later
