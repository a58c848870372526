"""The walk that plan and run share: each node's key is computed, then its record is looked up. Nothing is executed here."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from artifacts.code_digest import CodeError, Read, closure
from artifacts.key import KeyFailure, Parts, key_of, key_parts, library_versions
from artifacts.records import Record, Records
from artifacts.stage import Input, Made, Node, Pending, Stage
from artifacts.store import Store
from errors import UserError


@dataclass
class Step:
    """One node of a plan or a run, as people and ``--json`` see it."""

    stage: str
    node: str
    status: str
    because: list[str] = field(default_factory=list)
    seconds: float | None = None
    digest: str | None = None
    tokens: int = 0
    output_bytes: int = 0
    estimate: float | None = None
    key: str | None = None


@dataclass
class Decision:
    """What the walk knows of a node before anything of it is submitted."""

    node: Node
    key: str
    parts: Parts
    record: Record | None
    step: Step
    forced: bool = False


class Executor(Protocol):
    """What ``train_draft`` calls its stages through."""

    def run(self, node: Node) -> Made:
        """Do one node, or look it up."""
        ...

    def map(self, nodes: Iterable[Node]) -> list[Made]:
        """Do nodes that do not depend on one another."""
        ...

    def require(self, made: Made) -> None:
        """See to it that the blobs of final outputs are there."""
        ...


class Walk:
    """Keys and records over one store, with the code digests of one source tree."""

    def __init__(self, store: Store, records: Records, code: Path, max_bytes: int | None = None) -> None:
        self.store, self.records, self.code, self._max_bytes = store, records, code, max_bytes
        self.steps: list[Step] = []
        self._closures: dict[str, dict[str, str]] = {}
        self._read: dict[Path, Read] = {}
        self._makers: dict[str, Decision] = {}

    def modules(self, stage: Stage) -> dict[str, str]:
        """Digests of the stage's modules; raises ``KeyFailure`` where they cannot be known."""
        if stage.module not in self._closures:
            try:
                self._closures[stage.module] = closure(self.code, stage.module, self._read)
            except (CodeError, OSError) as error:
                raise KeyFailure(f"the code of stage {stage.name} cannot be known: {error}") from None
        return self._closures[stage.module]

    def decide(self, node: Node) -> Decision:
        """Compute the key and look the record up. Every miss names the parts that differ from its nearest kin."""
        parts = key_parts(node, self.modules(node.stage))
        key = key_of(parts)
        record = self.records.get(node.stage.name, key)
        step = Step(node.stage.name, node.name, "hit" if record else "run", tokens=node.tokens, output_bytes=node.output_bytes)
        step.key = key
        if record:
            step.digest = digest_of(record.outputs)
        else:
            step.because = self.records.explain(node.stage.name, parts)
            step.estimate = self._estimate(node)
        self.steps.append(step)
        decision = Decision(node, key, parts, record, step)
        if record:
            self.note_outputs(decision, record)
        return decision

    def note_outputs(self, decision: Decision, record: Record) -> None:
        """Remember which node makes each output, for the case that a blob is missing later."""
        for ref in record.outputs.values():
            self._makers.setdefault(ref.digest, decision)

    def _estimate(self, node: Node) -> float | None:
        rate = self.records.rate(node.stage.name)
        return node.tokens / rate if rate and node.tokens else None

    def require_room(self, nodes: Iterable[Node]) -> None:
        """Refuse nodes whose outputs would not fit the store; the free space is asked for only when they are known."""
        waiting = [node for node in nodes if node.output_bytes]
        if waiting:
            needed = sum(node.output_bytes for node in waiting)
            self.store.require_room(needed, self._max_bytes, f"the {waiting[0].stage.title} that would be made")

    def may_run(self, node: Node) -> Step:
        """A node of a plan that consumes something not yet known; what of its key is known must be computable."""
        self.modules(node.stage)
        library_versions(node.stage.libraries)
        reasons = sorted({source.because for source in node.inputs.values() if isinstance(source, Pending)})
        step = Step(node.stage.name, node.name, "may run", reasons, tokens=node.tokens, output_bytes=node.output_bytes)
        step.estimate = self._estimate(node)
        self.steps.append(step)
        return step

    def lost_inputs(self, inputs: Iterable[Input | Pending]) -> list[Decision]:
        """The producers whose blobs are read but gone, each marked as forced; producers of their inputs come first.

        Raises ``UserError`` where a lost blob cannot be made again bit for bit, or where nothing in this flow makes it.
        """
        found: list[Decision] = []
        for source in inputs:
            if not isinstance(source, Input) or source.ref is None or self.store.has(source.ref.digest):
                continue
            maker = self._makers.get(source.ref.digest)
            name = f"{source.ref.kind} {source.ref.digest[:12]}"
            if maker is None:
                raise UserError(f"{name} is missing from the store {self.store.root} and nothing in this flow makes it")
            if not maker.node.stage.reproducible:
                raise UserError(
                    f"{name} is missing from the store {self.store.root}, and {maker.node.label} cannot make it again bit for "
                    f"bit: restore the blob, or delete {self.records.path(maker.node.stage.name, maker.key)} to make a new one"
                )
            if maker.forced:
                continue
            maker.forced = True
            found += self.lost_inputs(maker.node.inputs.values())
            maker.step.status, maker.step.because = "run", [f"blob of {name} is missing"]
            found.append(maker)
        return found


def digest_of(outputs: dict[str, Any]) -> str:
    """The digest that stands for a node's outputs in listings: its only one, or the first by name with their count."""
    refs = [outputs[name].digest for name in sorted(outputs)]
    return refs[0] if len(refs) == 1 else f"{refs[0]}+{len(refs) - 1}" if refs else ""
