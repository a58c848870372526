"""Limits that stop a run before more hours are spent on bad data; a smoke run (``limit``) is only warned."""

import logging
from collections.abc import Iterable
from typing import Any

from artifacts.stage import Made
from errors import UserError
from tasks.acceptance import has_held_out
from tasks.settings import Settings

log = logging.getLogger("eyas")
LEAST_TOKENS = 1000  # supervised tokens of a slice; the coverage of fewer is chance


def gate(settings: Settings, crossed: bool, sentence: str) -> None:
    """Stop with a sentence where a limit was crossed; in a smoke run, warn."""
    if crossed and settings.limit is None:
        raise UserError(sentence)
    if crossed:
        log.warning("%s (a smoke run: only a warning)", sentence)


def facts_of(made: Iterable[Made], name: str) -> list[dict[str, Any]]:
    """The facts of an output of every node that is finished."""
    return [one.outputs[name].facts for one in made if one.outputs is not None]


def gate_rejects(settings: Settings, corpora: list[Made]) -> None:
    """Stop when the corpus rejected too many rows of a source."""
    for made, facts in zip(corpora, facts_of(corpora, "rejects"), strict=False):
        rate = facts["rejects"] / max(1, facts["rows"])
        gate(
            settings,
            rate > settings.gates.max_rejected,
            f"{made.node.label} rejected {facts['rejects']} of {facts['rows']} rows {facts['reasons']}, more than "
            f"gates.max_rejected = {settings.gates.max_rejected}: mend the file or raise the limit",
        )


def lost_tokens(corpora: list[Made]) -> tuple[int, int]:
    """Supervised tokens of all sources that the length limit cost, and supervised tokens in all."""
    facts = facts_of(corpora, "rejects")
    return sum(one.get("lost_supervised", 0) for one in facts), sum(one.get("supervised", 0) for one in facts)


def gate_lost(settings: Settings, corpora: list[Made]) -> None:
    """Stop when the length limit cost too many supervised tokens."""
    lost, supervised = lost_tokens(corpora)
    gate(
        settings,
        lost > settings.gates.max_lost * max(1, supervised),
        f"corpus.max_length = {settings.corpus.max_length} loses {lost:,} supervised tokens of {supervised:,}, more than "
        f"gates.max_lost = {settings.gates.max_lost}: raise one of the two",
    )


def gate_sides(settings: Settings, corpora: list[Made]) -> None:
    """Stop where nothing could be trained on or nothing could judge the draft; a smoke run, too, could not go on."""
    if any(made.outputs is None for made in corpora):
        return
    outputs = [ref for made in corpora for ref in (made.outputs or {}).values()]
    masks = [ref.facts for ref in outputs if ref.kind == "loss_masks"]
    samples = sum(facts["train_samples"] + facts["held_out_samples"] for facts in masks)
    if not any(facts["train_supervised"] for facts in masks):
        raise UserError(f"none of the corpus's {samples} samples is to be trained on: give more conversations")
    if settings.corpus.held_out == 0 or any(has_held_out(facts) for facts in masks):
        return
    sentence = f"none of the corpus's {samples} samples is held out"
    if settings.acceptance.prompts is None:
        raise UserError(
            f"{sentence} and acceptance.prompts is empty, so nothing could judge the draft: give more conversations, "
            "raise corpus.held_out or set acceptance.prompts"
        )
    log.warning("%s: the draft is judged by acceptance.prompts alone", sentence)


def gate_faults(settings: Settings, checks: list[Made]) -> None:
    """Stop when something is wrong with whole shards."""
    faulty = [made for made in checks if made.outputs is not None and made.outputs["check"].facts["faults"]]
    if faulty:
        assert faulty[0].outputs is not None
        more = f" (and {len(faulty) - 1} more shards have faults)" if len(faulty) > 1 else ""
        faults = " and ".join(faulty[0].outputs["check"].facts["faults"])
        gate(settings, True, f"{faulty[0].node.label}: {faults}{more}: mend what made its states, then run again")


def gate_quarantine(settings: Settings, checked: Made) -> None:
    """Stop when validation put too many samples aside, or when all shards together show a fault that none shows alone."""
    for facts in facts_of([checked], "report"):
        gate(
            settings,
            bool(facts["faults"]),
            f"of all shards together {' and '.join(facts['faults'])}: mend what made the states, then run again",
        )
        gate(
            settings,
            facts["rate"] > settings.gates.max_quarantined,
            f"validation put {facts['quarantined']} of {facts['samples']} samples aside {facts['reasons']}, more than "
            f"gates.max_quarantined = {settings.gates.max_quarantined}: look into its report or raise the limit",
        )


def gate_coverage(settings: Settings, words: Made) -> None:
    """Stop when the draft vocabulary misses too many answer tokens; warn where a slice misses many."""
    for facts in facts_of([words], "vocabulary"):
        gate(
            settings,
            facts["coverage"] < settings.gates.min_coverage,
            f"the draft vocabulary of {facts['size']} covers {facts['coverage']:.1%} of supervised tokens, less than "
            f"gates.min_coverage = {settings.gates.min_coverage}: raise vocabulary.size or lower the limit",
        )
        for sentence in thin_slices(settings, facts):
            log.warning("%s", sentence)


def thin_slices(settings: Settings, facts: dict[str, Any]) -> list[str]:
    """A sentence for each slice that the draft vocabulary covers too little of."""
    covered, supervised = facts["coverage_by_slice"], facts["supervised_by_slice"]
    return [
        f"the draft vocabulary covers {coverage:.1%} of the slice {name} ({supervised[name]:,} supervised tokens), less than "
        f"gates.min_slice_coverage = {settings.gates.min_slice_coverage}: raise vocabulary.size or give more such conversations"
        for name, coverage in covered.items()
        if supervised[name] >= LEAST_TOKENS and coverage < settings.gates.min_slice_coverage
    ]
