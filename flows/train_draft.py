"""The pipeline: from prompts and conversations to a judged draft. Plan and run walk this same body."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from artifacts.stage import Made, Node
from flows.checks import check_settings, check_target
from flows.engine_gates import gate_engine
from flows.gates import gate_coverage, gate_faults, gate_lost, gate_quarantine, gate_rejects, gate_sides
from running.devices import memory
from running.walk import Executor
from tasks import (
    acceptance,
    comparison,
    corpus,
    endpoint_synthesis,
    engine_acceptance,
    engine_states,
    export,
    hidden_states,
    layer_reference,
    legacy,
    parents,
    passes,
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
    exports: list[Made]
    legacy: list[Made] = field(default_factory=list)
    engines: list[Made] = field(default_factory=list)
    compared: list[Made] = field(default_factory=list)
    rivals: list[Made] = field(default_factory=list)
    states: list[Made] = field(default_factory=list)

    @property
    def export(self) -> Made:
        """The checkpoint for the engine that is named first."""
        return self.exports[0]


def train_draft(
    settings: Settings,
    run: Executor,
    memo: Any,
    forgotten: Callable[[str], list[str]],
    left_out: Collection[str] = (),
) -> DraftRun:
    """Make a draft for the verifier of ``settings``.

    ``memo`` remembers the digests of files outside the store; ``forgotten`` says what a source must leave out; files of the
    digests ``left_out`` are passed over.
    """
    check_settings(settings)
    files = [file for file in corpus.files(settings, memo) if getattr(file.input, "digest", None) not in left_out]

    target = obtain_verifier(settings, run, memo)
    layer_ids = hidden_states.layer_ids(settings, target)
    check_target(settings, target, layer_ids)
    parent = parents.find(settings, target, layer_ids, memo)
    answered = run.map(answer_nodes(settings, target))
    sources = [*files, *corpus.synthesized(answered)]
    corpora = run.map(corpus.nodes(settings, sources, target, forgotten))
    gate_rejects(settings, corpora)
    gate_lost(settings, corpora)
    taken = run.map(legacy.nodes(settings, layer_ids, target, memo, forgotten))
    gate_sides(settings, [*corpora, *taken])
    own = corpus.shards(corpora)
    shards = [*own, *legacy.shards(taken)]
    words = run.run(vocabulary.node(settings, shards, target, memo, parent))
    gate_coverage(settings, words)
    states = [*extract(settings, run, own, target), *taken]
    checks = run.map(validation.nodes(settings, shards, states, target))
    gate_faults(settings, checks)
    checked = run.run(validation_merge.node(settings, checks))
    gate_quarantine(settings, checked)
    draft = run.run(training.node(settings, shards, states, checked, words, target, memo, parent))
    judging = acceptance.nodes(settings, shards, states, checked, draft, target, verifier.decodes(target))
    judged = run.map(judging)
    compared = run.map(comparison.nodes(settings, judging, target, layer_ids, memo))
    exported = run.map(export.nodes(settings, draft, judged, target))
    engines = run.map(engine_acceptance.nodes(settings, exported, target))
    gate_engine(settings, judged, engines)
    rivals = run.map(engine_acceptance.rivals(settings, comparison.drafts(settings, memo), target))
    for final in (*judged, *compared, *exported):
        if final.outputs is not None:
            run.require(final)
    return DraftRun(
        verifier=target,
        corpora=corpora,
        checked=checked,
        vocabulary=words,
        training=draft,
        judged=judged,
        exports=exported,
        legacy=taken,
        engines=engines,
        compared=compared,
        rivals=rivals,
        states=states,
    )


def obtain_verifier(settings: Settings, run: Executor, memo: Any) -> Verifier:
    """The directory that the settings name, or the embedded one, made first."""
    if settings.verifier.directory is not None:
        return verifier.from_directory(settings.verifier, memo)
    return verifier.from_made(settings.verifier, run.run(verifier.embedded_node(settings.verifier, memo)))


def answer_nodes(settings: Settings, target: Verifier) -> list[Node]:
    """The nodes that answer prompts, here or by the engine that serves the verifier."""
    return (endpoint_synthesis if settings.synthesis.source == "endpoint" else synthesis).nodes(settings, target)


def extract(settings: Settings, run: Executor, shards: list[Shard], target: Verifier) -> list[Made]:
    """The shards' hidden states, computed here or drawn from an engine whose layers are proven against ours first."""
    if settings.hidden_states.source == "engine" and shards:
        layer_ids, size = hidden_states.layer_ids(settings, target), hidden_states.token_bytes(settings, target)
        proof = run.run(layer_reference.node(settings, target))
        return run.map(engine_states.nodes(settings, shards, target, proof, layer_ids, size))
    there = cache(lambda: memory(settings.devices, settings.running.cpu_slots))
    made = run.map(passes.sized(settings, hidden_states.nodes(settings, shards, target), run.walk.pass_tokens, there))
    passes.check(settings, made, there)
    return made
