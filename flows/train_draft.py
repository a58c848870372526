"""The pipeline: from prompts and conversations to a judged draft. Plan and run walk this same body."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from artifacts.stage import Made, Node
from flows.engine_gates import gate_engine
from flows.gates import gate_coverage, gate_faults, gate_lost, gate_quarantine, gate_rejects, gate_sides
from running.walk import Executor
from tasks import (
    acceptance,
    corpus,
    endpoint_synthesis,
    engine_acceptance,
    engine_states,
    export,
    hidden_states,
    layer_reference,
    legacy,
    synthesis,
    training,
    validation,
    validation_merge,
    verifier,
    vocabulary,
)
from tasks.handles import Shard, Verifier
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
    export: Made
    legacy: list[Made] = field(default_factory=list)
    engines: list[Made] = field(default_factory=list)


def train_draft(settings: Settings, run: Executor, memo: Any, forgotten: Callable[[str], list[str]]) -> DraftRun:
    """Make a draft for the verifier of ``settings``.

    ``memo`` remembers the digests of files outside the store; ``forgotten`` says what a source must leave out.
    """
    verifier.check(settings.verifier)
    acceptance.check(settings)
    engine_acceptance.check(settings)
    if settings.synthesis.source == "endpoint":
        endpoint_synthesis.check(settings)
    training.check(settings)
    engine_states.check(settings)
    files = corpus.files(settings, memo)

    target = obtain_verifier(settings, run, memo)
    verifier.check_decodes(settings, target)
    vocabulary.check(settings, target)
    answering = endpoint_synthesis if settings.synthesis.source == "endpoint" else synthesis
    answered = run.map(answering.nodes(settings, target))
    sources = [*files, *corpus.synthesized(answered)]
    corpora = run.map(corpus.nodes(settings, sources, target, forgotten))
    gate_rejects(settings, corpora)
    gate_lost(settings, corpora)
    taken = run.map(legacy.nodes(settings, hidden_states.layer_ids(settings, target), target, memo, forgotten))
    gate_sides(settings, [*corpora, *taken])
    own = corpus.shards(corpora)
    shards = [*own, *legacy.shards(taken)]
    words = run.run(vocabulary.node(settings, shards, target))
    gate_coverage(settings, words)
    states = [*run.map(state_nodes(settings, run, own, target)), *taken]
    checks = run.map(validation.nodes(settings, shards, states, target))
    gate_faults(settings, checks)
    checked = run.run(validation_merge.node(settings, checks))
    gate_quarantine(settings, checked)
    draft = run.run(training.node(settings, shards, states, checked, words, target, memo))
    judging = acceptance.nodes(settings, shards, states, checked, draft, target, verifier.decodes(target))
    *judged, exported = run.map([*judging, export.node(settings, draft, target)])
    engines = run.map(engine_acceptance.nodes(settings, [exported], target))
    gate_engine(settings, judged, engines)
    for final in (*judged, exported):
        if final.outputs is not None:
            run.require(final)
    return DraftRun(target, corpora, checked, words, draft, judged, exported, taken, engines)


def obtain_verifier(settings: Settings, run: Executor, memo: Any) -> Verifier:
    """The directory that the settings name, or the embedded one, made first."""
    if settings.verifier.directory is not None:
        return verifier.from_directory(settings.verifier, memo)
    return verifier.from_made(settings.verifier, run.run(verifier.embedded_node(settings.verifier, memo)))


def state_nodes(settings: Settings, run: Executor, shards: list[Shard], target: Verifier) -> list[Node]:
    """The nodes that give the shards' hidden states, here or by an engine whose layers are proven against ours first."""
    if settings.hidden_states.source == "own" or not shards:
        return hidden_states.nodes(settings, shards, target)
    layer_ids, size = hidden_states.layer_ids(settings, target), hidden_states.token_bytes(settings, target)
    return engine_states.nodes(settings, shards, target, run.run(layer_reference.node(settings, target)), layer_ids, size)
