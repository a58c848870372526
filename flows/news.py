"""What is new since a verifier's last retraining: told by content, so that a renamed or touched file is not."""

import json
from dataclasses import dataclass

from artifacts.records import Record
from artifacts.runs import Run, read_run
from artifacts.stage import Input, Made, Node, Pending
from errors import UserError
from flows.gates import gate_rejects
from flows.train_draft import answer_nodes
from running.host import Host
from running.walk import Executor
from tasks import corpus, hidden_states, legacy, promotion
from tasks.handles import Source, Verifier
from tasks.settings import Settings


@dataclass(frozen=True)
class Last:
    """The last retraining that came to a decision: when, which, and the digests of the sources that its draft learned from."""

    when: str
    decision: Record
    took: frozenset[str]

    @property
    def told(self) -> str:
        """The decision in a sentence."""
        facts = self.decision.outputs["decision"].facts
        return f"{facts['verdict']} {facts['candidate'][:12]}: {'; '.join(facts['reasons'])}"


def last_retraining(host: Host, scope: str | None) -> Last | None:
    """The newest run that decided about a draft of a verifier."""
    for path in reversed(host.runs.paths()) if scope else ():
        try:
            run = read_run(path)
        except (FileNotFoundError, ValueError):
            continue
        for node in run.nodes:
            record = (
                host.records.get(promotion.STAGE.name, node.key) if node.stage == promotion.STAGE.name and node.key else None
            )
            if record and record.parts["setting promotion.verifier"] == json.dumps(scope):
                return Last(run.began, record, frozenset(_took(host, run)))
    return None


def _took(host: Host, run: Run) -> set[str]:
    records = (host.records.get(node.stage, node.key) for node in run.nodes if node.stage in _READ and node.key)
    return {source["digest"] for record in records if record for source in record.lineage["inputs"].values()}


_READ = ("corpus", "legacy")


@dataclass(frozen=True)
class News:
    """``fresh``: names of sources that the last retraining did not take. ``refused``: digest -> the sentence for each file
    that the corpus cannot use, whether it is new or not."""

    fresh: list[str]
    refused: dict[str, str]


def news(settings: Settings, host: Host, target: Verifier, last: Last | None, plan: Executor, run: Executor) -> News:
    """What is new, and which files are to be left out: files that ``plan`` does not know ``run`` reads now."""
    took = last.took if last else frozenset()
    files = corpus.files(settings, host.memo)
    known = plan.map(corpus.nodes(settings, files, target, host.forgotten.of))
    unread = [made.node for source, made in zip(files, known, strict=True) if not made.outputs and _is_new(source.input, took)]
    refused = _refused(settings, files, known, dict(zip(map(id, unread), _read(unread, run), strict=True)))
    fresh = [source.name for source in files if _is_new(source.input, took) and _digest(source) not in refused]
    answered = corpus.synthesized(plan.map(answer_nodes(settings, target)))
    fresh += [source.name for source in answered if _is_new(source.input, took)]
    layers = hidden_states.layer_ids(settings, target)
    for node in legacy.nodes(settings, layers, target, host.memo, host.forgotten.of):
        fresh += [node.name] if any(_is_new(source, took) for source in node.inputs.values()) else []
    return News(fresh, refused)


def _refused(settings: Settings, files: list[Source], known: list[Made], read: dict[int, Made | UserError]) -> dict[str, str]:
    """Files that give no corpus, or reject too much of theirs: one of them must not stop all the others."""
    found = {}
    for source, made in zip(files, known, strict=True):
        one = read.get(id(made.node), made)
        try:
            if isinstance(one, UserError):
                raise one
            gate_rejects(settings, [one])
        except UserError as error:
            found[_digest(source)] = str(error)
    return found


def _read(nodes: list[Node], run: Executor) -> list[Made | UserError]:
    """Read files together; where one of them fails, each by itself, so that it is known which."""
    try:
        return list(run.map(nodes))
    except UserError:
        return [_alone(node, run) for node in nodes]


def _alone(node: Node, run: Executor) -> Made | UserError:
    try:
        return run.run(node)
    except UserError as error:
        return error


def _digest(source: Source) -> str:
    assert isinstance(source.input, Input)  # files of the user's have been read
    return source.input.digest


def _is_new(source: Input | Pending, took: frozenset[str]) -> bool:
    return isinstance(source, Pending) or source.digest not in took
