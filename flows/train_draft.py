"""The pipeline: from prompts and conversations to a judged draft. Plan and run walk this same body."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from artifacts.stage import Made
from flows.gates import gate_coverage, gate_faults, gate_lost, gate_quarantine, gate_rejects, gate_sides
from running.walk import Executor
from tasks import (
    acceptance,
    comparison,
    corpus,
    export,
    hidden_states,
    legacy,
    parents,
    synthesis,
    training,
    validation,
    validation_merge,
    verifier,
    vocabulary,
)
from tasks.handles import Verifier
from tasks.settings import Settings


@dataclass(frozen=True)
class DraftRun:
    """The outputs that people ask for; in a plan some are not known yet."""

    verifier: Verifier
    corpora: list[Made]
    checked: Made
    vocabulary: Made
    training: Made
    judged: list[Made]
    exports: list[Made]
    legacy: list[Made] = field(default_factory=list)
    compared: list[Made] = field(default_factory=list)

    @property
    def export(self) -> Made:
        """The checkpoint for the engine that is named first."""
        return self.exports[0]


def train_draft(settings: Settings, run: Executor, memo: Any, forgotten: Callable[[str], list[str]]) -> DraftRun:
    """Make a draft for the verifier of ``settings``.

    ``memo`` remembers the digests of files outside the store; ``forgotten`` says what a source must leave out.
    """
    verifier.check(settings.verifier)
    acceptance.check(settings)
    training.check(settings)
    files = corpus.files(settings, memo)

    target = obtain_verifier(settings, run, memo)
    verifier.check_decodes(settings, target)
    vocabulary.check(settings, target)
    layer_ids = hidden_states.layer_ids(settings, target)
    parent = parents.find(settings, target, layer_ids, memo)
    export.check(settings, target, layer_ids)
    comparison.check(settings, target, layer_ids, decodes=settings.acceptance.prompts is not None)
    answered = run.map(synthesis.nodes(settings, target))
    sources = [*files, *corpus.synthesized(answered)]
    corpora = run.map(corpus.nodes(settings, sources, target, forgotten))
    gate_rejects(settings, corpora)
    gate_lost(settings, corpora)
    taken = run.map(legacy.nodes(settings, layer_ids, target, memo, forgotten))
    gate_sides(settings, [*corpora, *taken])
    own = corpus.shards(corpora)
    shards = [*own, *legacy.shards(taken)]
    words = run.run(vocabulary.node(settings, shards, target, parent))
    gate_coverage(settings, words)
    states = [*run.map(hidden_states.nodes(settings, own, target)), *taken]
    checks = run.map(validation.nodes(settings, shards, states, target))
    gate_faults(settings, checks)
    checked = run.run(validation_merge.node(settings, checks))
    gate_quarantine(settings, checked)
    draft = run.run(training.node(settings, shards, states, checked, words, target, memo, parent))
    judging = acceptance.nodes(settings, shards, states, checked, draft, target)
    judged = run.map(judging)
    compared = run.map(comparison.nodes(settings, judging, target, memo))
    exported = run.map(export.nodes(settings, draft, judged, target))
    for final in (*judged, *compared, *exported):
        if final.outputs is not None:
            run.require(final)
    return DraftRun(target, corpora, checked, words, draft, judged, exported, taken, compared)


def obtain_verifier(settings: Settings, run: Executor, memo: Any) -> Verifier:
    """The directory that the settings name, or the embedded one, made first."""
    if settings.verifier.directory is not None:
        return verifier.from_directory(settings.verifier, memo)
    return verifier.from_made(settings.verifier, run.run(verifier.embedded_node(settings.verifier, memo)))
