"""The rule by which a candidate takes the champion's place; pure arithmetic over what both accepted on the same samples.

With a champion: the lower end of the interval of the paired difference lies above a margin, in the measure that decides; no
other measure and no slice is shorter by more than a limit; nothing was lossy. Without one: every measure's interval lies above
the untrained draft.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from kimi_adapters.acceptance_difference import Difference, paired_difference


@dataclass(frozen=True)
class Measure:
    """A draft and the champion by one method, the same samples in the same order.

    ``facts`` are the candidate's; ``counts`` I64 [n, 4] as ``paired_difference`` takes them, None without a champion;
    ``slices`` the slices of each sample, where they are known.
    """

    facts: Mapping[str, Any]
    counts: np.ndarray | None
    slices: list[dict[str, str]] = field(default_factory=list)

    @property
    def method(self) -> str:
        """``replay`` or ``real decoding``."""
        return str(self.facts["method"])


@dataclass(frozen=True)
class Rule:
    """Limits; see ``PromotionSettings``."""

    margin: float
    confidence: float
    max_slice_loss: float
    min_samples: int


@dataclass
class Verdict:
    """``promote``, with the sentences for and against, and a row for each measure and slice."""

    promote: bool = True
    because: list[str] = field(default_factory=list)
    against: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def refuse(self, sentence: str) -> None:
        """Another reason why the champion stays."""
        self.promote = False
        self.against.append(sentence)

    @property
    def reasons(self) -> list[str]:
        """What is told: the reasons against where there is one, else those for."""
        return self.against or self.because


def decide(measures: list[Measure], rule: Rule) -> Verdict:
    """Judge a candidate; the first measure decides, the others and the slices can only refuse. Without one nothing is shown."""
    verdict = Verdict()
    if not measures:
        verdict.refuse("neither real decoding nor replay has judged it: hold conversations out (corpus.held_out)")
    for place, measure in enumerate(measures):
        _lossless(verdict, measure)
        if measure.counts is None:
            _beats_untrained(verdict, measure, rule)
            continue
        found = paired_difference(measure.counts, rule.confidence)
        _row(verdict, measure.method, "all", found)
        if place == 0:
            _better(verdict, measure.method, found, rule)
        else:
            _not_worse(verdict, f"{measure.method} of all samples", found, rule)
        for name, counts in _by_slice(measure):
            found = paired_difference(counts, rule.confidence)
            _row(verdict, measure.method, name, found)
            _not_worse(verdict, f"the slice {name}", found, rule)
    return verdict


def _lossless(verdict: Verdict, measure: Measure) -> None:
    equal, prompts = measure.facts.get("lossless"), measure.facts["prompts"]
    if equal is not None and equal < prompts:
        verdict.refuse(f"{measure.method} gave what plain decoding gives in {equal} of {prompts} prompts only")


def _beats_untrained(verdict: Verdict, measure: Measure, rule: Rule) -> None:
    facts = measure.facts
    told = (
        f"there is no champion yet, and by {measure.method} of {facts['prompts']} samples its acceptance length of "
        f"{facts['length']:.2f} ({facts['low']:.2f} to {facts['high']:.2f})"
    )
    untrained = f"the untrained draft's {facts['untrained_length']:.2f}"
    if facts["prompts"] < rule.min_samples:
        verdict.refuse(f"{told} rests on fewer samples than promotion.min_samples = {rule.min_samples}")
    elif facts["low"] - facts["untrained_length"] > rule.margin:
        verdict.because.append(f"{told} lies above {untrained}")
    else:
        verdict.refuse(f"{told} does not lie above {untrained} by more than promotion.margin = {rule.margin}")


def _better(verdict: Verdict, method: str, found: Difference, rule: Rule) -> None:
    told = (
        f"by {method} of {found.samples} samples its acceptance length is {found.candidate:.2f} and the champion's "
        f"{found.champion:.2f}, a difference of {found.value:+.3f} ({found.low:+.3f} to {found.high:+.3f})"
    )
    if found.samples < rule.min_samples:
        verdict.refuse(f"{found.samples} samples were compared, fewer than promotion.min_samples = {rule.min_samples}")
    elif found.low > rule.margin:
        verdict.because.append(told)
    else:
        verdict.refuse(f"{told}, whose lower end is not above promotion.margin = {rule.margin}")


def _not_worse(verdict: Verdict, what: str, found: Difference, rule: Rule) -> None:
    if found.samples < rule.min_samples:
        verdict.notes.append(f"{what} has {found.samples} samples, too few to be judged")
    elif -found.value > rule.max_slice_loss:
        verdict.refuse(
            f"in {what} its acceptance length is {found.candidate:.2f} and the champion's {found.champion:.2f} on "
            f"{found.samples} samples, shorter by more than promotion.max_slice_loss = {rule.max_slice_loss}"
        )


def _by_slice(measure: Measure) -> Iterator[tuple[str, np.ndarray]]:
    """(``script=latin``, the counts of its samples), by name; a slice that holds every sample says nothing more."""
    assert measure.counts is not None
    names = sorted({pair for slices in measure.slices for pair in slices.items()})
    for name, value in names:
        inside = np.array([slices.get(name) == value for slices in measure.slices])
        if not inside.all():
            yield f"{name}={value}", measure.counts[inside]


def _row(verdict: Verdict, method: str, name: str, found: Difference) -> None:
    numbers = {key: round(value, 4) if value == value else None for key, value in asdict(found).items()}
    verdict.rows.append({"method": method, "slice": name, **numbers})
