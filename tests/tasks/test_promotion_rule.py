"""When a candidate takes the champion's place, and which sentence says why not."""

from typing import Any

import numpy as np
import pytest

from kimi_adapters.acceptance_difference import paired_difference
from kimi_adapters.acceptance_interval import interval
from kimi_adapters.acceptance_length import Acceptance
from tasks.promotion_rule import Measure, Rule, Verdict, decide

RULE = Rule(margin=0.0, confidence=0.95, max_slice_loss=0.05, min_samples=8)
SCRIPTS = ["latin"] * 20 + ["han"] * 16 + ["thai"] * 4


def counts(candidate: float, champion: float, samples: int = 40, seed: int = 0) -> np.ndarray:
    """Tokens and steps of both drafts on samples of 60 tokens, hard ones and easy ones."""
    generator = np.random.default_rng(seed)
    ease = generator.uniform(0.6, 1.4, samples)
    both = [np.round(60 / np.maximum(1.0, length * ease)) for length in (candidate, champion)]
    tokens = np.full(samples, 60)
    return np.stack([tokens, both[0], tokens, both[1]], axis=1).astype(np.int64)


def measure(pairs: np.ndarray | None, method: str = "replay", scripts: list[str] | None = None, **facts: Any) -> Measure:
    known = {"method": method, "prompts": 40 if pairs is None else len(pairs), "length": 1.5, "low": 1.4, "high": 1.6}
    slices = [{"script": script, "tools": "off"} for script in scripts or []]
    return Measure({**known, "untrained_length": 1.0, **facts}, pairs, slices)


def refused(verdict: Verdict) -> str:
    (sentence,) = verdict.against
    assert not verdict.promote and verdict.reasons == [sentence]
    return sentence


def test_a_better_draft_is_promoted_and_says_by_how_much() -> None:
    verdict = decide([measure(counts(1.9, 1.7), scripts=SCRIPTS)], RULE)
    assert verdict.promote and "by replay of 40 samples" in verdict.reasons[0]
    assert verdict.rows[0]["low"] > 0 and {row["slice"] for row in verdict.rows} >= {"all", "script=latin", "script=han"}
    assert not any(row["slice"] == "tools=off" for row in verdict.rows), "a slice of all samples says nothing more"


@pytest.mark.parametrize("candidate", [1.7, 1.6])
def test_a_worse_or_equal_draft_is_refused(candidate: float) -> None:
    assert "whose lower end is not above promotion.margin" in refused(decide([measure(counts(candidate, 1.7))], RULE))


def test_the_margin_must_be_passed_by_the_whole_interval() -> None:
    found = paired_difference(counts(1.9, 1.7))
    assert decide([measure(counts(1.9, 1.7))], Rule(found.low - 0.001, 0.95, 0.05, 8)).promote
    assert not decide([measure(counts(1.9, 1.7))], Rule(found.low + 0.001, 0.95, 0.05, 8)).promote


def test_one_worse_slice_keeps_the_champion() -> None:
    pairs = np.concatenate([counts(2.2, 1.7, 20), counts(1.5, 1.7, 16), counts(2.2, 1.7, 4)])
    assert "in the slice script=han" in refused(decide([measure(pairs, scripts=SCRIPTS)], RULE))
    assert decide([measure(pairs, scripts=SCRIPTS)], Rule(0.0, 0.95, 0.5, 8)).promote


def test_a_thin_slice_is_named_and_decides_nothing() -> None:
    pairs = np.concatenate([counts(2.2, 1.7, 36), counts(1.2, 1.7, 4)])
    verdict = decide([measure(pairs, scripts=SCRIPTS)], RULE)
    assert verdict.promote and verdict.notes == ["the slice script=thai has 4 samples, too few to be judged"]


def test_too_few_samples_in_all_keep_the_champion() -> None:
    assert "7 samples were compared, fewer than" in refused(decide([measure(counts(3.0, 1.5, 7))], RULE))


def test_the_first_measure_decides_and_the_others_may_only_refuse() -> None:
    good, even, bad = counts(1.9, 1.7), counts(1.7, 1.7), counts(1.5, 1.7)
    assert decide([measure(good, "real decoding"), measure(even)], RULE).promote
    assert "in replay of all samples" in refused(decide([measure(good, "real decoding"), measure(bad)], RULE))
    assert "by real decoding" in refused(decide([measure(even, "real decoding"), measure(good)], RULE))


def test_a_lossy_draft_is_refused_however_long() -> None:
    better = measure(counts(1.9, 1.7), "real decoding", lossless=39)
    assert "plain decoding gives in 39 of 40 prompts only" in refused(decide([better], RULE))
    assert decide([measure(counts(1.9, 1.7), "real decoding", lossless=40)], RULE).promote


def test_the_first_champion_must_beat_the_untrained_draft() -> None:
    assert "no champion yet" in decide([measure(None)], RULE).because[0]
    assert "does not lie above" in refused(decide([measure(None, untrained_length=1.45)], RULE))
    assert "fewer samples than" in refused(decide([measure(None, prompts=7)], RULE))
    assert "gave what plain decoding gives" in refused(decide([measure(None, lossless=1)], RULE))


def test_pairs_tell_more_than_two_intervals() -> None:
    """Of drafts that differ little on samples that differ much, the paired interval is the narrower, and the same each time."""
    pairs = counts(1.8, 1.7)
    found = paired_difference(pairs)
    assert found == paired_difference(pairs) and found.samples == 40
    assert found.value == pytest.approx(pairs[:, 0].sum() / pairs[:, 1].sum() - pairs[:, 2].sum() / pairs[:, 3].sum())
    apart = [interval([Acceptance(int(t), int(s), ()) for t, s in pairs[:, at : at + 2]]) for at in (0, 2)]
    assert found.high - found.low < min(high - low for low, high in apart) / 2
    assert found.low > 0 > apart[0][0] - apart[1][1]


def test_samples_without_a_step_are_left_out() -> None:
    pairs = np.concatenate([counts(1.9, 1.7, 9), np.array([[0, 0, 5, 3]])])
    assert paired_difference(pairs).samples == 9 and np.isnan(paired_difference(pairs[9:]).low)


def test_without_a_measure_nothing_is_promoted() -> None:
    assert "neither real decoding nor replay has judged it" in refused(decide([], RULE))
