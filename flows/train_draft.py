"""The pipeline: from prompts and conversations to a judged draft. Plan and run walk this same body."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from artifacts.stage import Made
from errors import UserError
from running.walk import Executor
from tasks import acceptance, corpus, export, hidden_states, synthesis, training, validation, verifier, vocabulary
from tasks.handles import Verifier
from tasks.settings import Settings

log = logging.getLogger("eyas")


@dataclass(frozen=True)
class DraftRun:
    """The outputs that people ask for; in a plan some are not known yet."""

    verifier: Verifier
    corpora: list[Made]
    checked: Made
    vocabulary: Made
    training: Made
    judged: list[Made]
    export: Made


def train_draft(settings: Settings, run: Executor, memo: Any) -> DraftRun:
    """Make a draft for the verifier of ``settings``; ``memo`` remembers the digests of files outside the store."""
    verifier.check(settings.verifier)
    acceptance.check(settings)
    files = corpus.files(settings, memo)

    target = obtain_verifier(settings, run, memo)
    vocabulary.check(settings, target)
    answered = run.map(synthesis.nodes(settings, target))
    sources = [*files, *corpus.synthesized(answered)]
    corpora = run.map(corpus.nodes(settings, sources, target))
    gate_rejects(settings, corpora)
    shards = corpus.shards(corpora)
    states = run.map(hidden_states.nodes(settings, shards, target))
    checks = run.map(validation.shard_nodes(settings, shards, states))
    checked = run.run(validation.merge_node(checks))
    gate_quarantine(settings, checked)
    words = run.run(vocabulary.node(settings, shards, target))
    gate_coverage(settings, words)
    draft = run.run(training.node(settings, shards, states, checked, words, target))
    *judged, exported = run.map(
        [*acceptance.nodes(settings, shards, states, draft, target), export.node(settings, draft, target)]
    )
    for final in (*judged, exported):
        if final.outputs is not None:
            run.require(final)
    return DraftRun(target, corpora, checked, words, draft, judged, exported)


def obtain_verifier(settings: Settings, run: Executor, memo: Any) -> Verifier:
    """The directory that the settings name, or the embedded one, made first."""
    if settings.verifier.directory is not None:
        return verifier.from_directory(settings.verifier, memo)
    return verifier.from_made(settings.verifier, run.run(verifier.embedded_node(settings.verifier, memo)))


def _gate(settings: Settings, crossed: bool, sentence: str) -> None:
    if crossed and settings.limit is None:
        raise UserError(sentence)
    if crossed:
        log.warning("%s (a smoke run: only a warning)", sentence)


def _facts(made: Iterable[Made], name: str) -> list[dict[str, Any]]:
    return [one.outputs[name].facts for one in made if one.outputs is not None]


def gate_rejects(settings: Settings, corpora: list[Made]) -> None:
    """Stop when the corpus rejected too many rows."""
    for made, facts in zip(corpora, _facts(corpora, "rejects"), strict=False):
        rate = facts["rejects"] / max(1, facts["rows"])
        _gate(
            settings,
            rate > settings.gates.max_rejected,
            f"{made.node.label} rejected {facts['rejects']} of {facts['rows']} rows {facts['reasons']}, more than "
            f"gates.max_rejected = {settings.gates.max_rejected}: mend the file or raise the limit",
        )


def gate_quarantine(settings: Settings, checked: Made) -> None:
    """Stop when validation put too many samples aside."""
    for facts in _facts([checked], "report"):
        _gate(
            settings,
            facts["rate"] > settings.gates.max_quarantined,
            f"validation put {facts['quarantined']} of {facts['samples']} samples aside {facts['reasons']}, more than "
            f"gates.max_quarantined = {settings.gates.max_quarantined}: look into its report or raise the limit",
        )


def gate_coverage(settings: Settings, words: Made) -> None:
    """Stop when the draft vocabulary misses too many answer tokens."""
    for facts in _facts([words], "vocabulary"):
        _gate(
            settings,
            facts["coverage"] < settings.gates.min_coverage,
            f"the draft vocabulary of {facts['size']} covers {facts['coverage']:.1%} of supervised tokens, less than "
            f"gates.min_coverage = {settings.gates.min_coverage}: raise vocabulary.size or lower the limit",
        )
