"""The walk that plan and run share: each node's key is computed, then its record is looked up. Nothing is executed here."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from artifacts.code_digest import CodeError, Read, closure
from artifacts.key import KeyFailure, Parts, key_of, node_parts, stage_parts
from artifacts.kin import Kin
from artifacts.manifest import Ref
from artifacts.records import Record, Records
from artifacts.stage import Input, Made, Node, Pending, Stage
from artifacts.store import Store
from errors import UserError
from running.mirroring import Mirroring
from running.rates import hiding_tokens


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
    devices: int = 1  # that it holds for those seconds
    pass_tokens: int | None = None  # of a pass whose computing takes as long as the reading of the weights
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

    walk: "Walk"

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
    """Keys and records over one store and its mirror, with the code digests of one source tree."""

    def __init__(
        self, store: Store, records: Records, code: Path, max_bytes: int | None = None, mirroring: Mirroring | None = None
    ) -> None:
        self.store, self.records, self.code, self._max_bytes = store, records, code, max_bytes
        self.mirroring = mirroring
        self.steps: list[Step] = []
        self._read: dict[Path, Read] = {}
        self._shared: dict[Stage, Parts] = {}
        self._makers: dict[str, Decision] = {}
        self._kin = Kin(records)
        self._pass_tokens: dict[tuple[str, str], int | None] = {}

    def shared_parts(self, stage: Stage) -> Parts:
        """The parts of the key that all nodes of a stage share; raises ``KeyFailure`` where they cannot be known."""
        if stage not in self._shared:
            try:
                modules = closure(self.code, stage.module, self._read)
            except (CodeError, OSError) as error:
                raise KeyFailure(f"the code of stage {stage.name} cannot be known: {error}") from None
            self._shared[stage] = stage_parts(stage, modules)
        return self._shared[stage]

    def decide(self, nodes: Iterable[Node]) -> list[Decision]:
        """Compute keys and look records up, here and then in the mirror, in one go for all nodes.

        Every miss names the parts that differ from its nearest kin. The executor adds the steps to ``steps``.
        """
        keyed = [(node, self.shared_parts(node.stage) | node_parts(node)) for node in nodes]
        wanted = [(node.stage.name, key_of(parts)) for node, parts in keyed]
        records = self._look_up(wanted)
        return [self._decision(*each, *pair, records.get(pair)) for each, pair in zip(keyed, wanted, strict=True)]

    def _look_up(self, wanted: list[tuple[str, str]]) -> dict[tuple[str, str], Record]:
        found = {pair: record for pair in wanted if (record := self.records.get(*pair)) is not None}
        missing: dict[str, list[str]] = {}
        for stage, key in wanted:
            if (stage, key) not in found:
                missing.setdefault(stage, []).append(key)
        for stage, keys in missing.items() if self.mirroring else ():
            assert self.mirroring is not None
            found |= {(stage, key): record for key, record in self.mirroring.records(stage, keys).items()}
        return found

    def _decision(self, node: Node, parts: Parts, stage: str, key: str, record: Record | None) -> Decision:
        step = Step(
            stage,
            node.name,
            "hit" if record else "run",
            tokens=node.tokens,
            output_bytes=node.output_bytes,
            devices=node.devices,
        )
        step.key = key
        if record:
            parts = record.parts  # equal, since their keys are: one of the two is enough to keep
            step.digest = digest_of(record.outputs)
            step.because = adopted_because(record)
        else:
            step.because = self._kin.explain(stage, parts)
            step.estimate, step.pass_tokens = self.estimate(node), self.pass_tokens(node)
        decision = Decision(node, key, parts, record, step)
        if record:
            self.note_outputs(decision, record)
        return decision

    def note_outputs(self, decision: Decision, record: Record) -> None:
        """Remember which node makes each output, for the case that a blob is missing later."""
        for ref in record.outputs.values():
            self._makers.setdefault(ref.digest, decision)

    @property
    def has_work(self) -> bool:
        """Whether a step is not a hit."""
        return any(step.status != "hit" for step in self.steps)

    @property
    def stages(self) -> dict[str, Stage]:
        """The stages of the steps, by name."""
        return {stage.name: stage for stage in self._shared}

    def estimate(self, node: Node) -> float | None:
        """Seconds on one device that a node takes by the rate that this store has measured; None while there is none."""
        rate = self._kin.rate(node.stage.name, node.entry)
        return node.tokens / rate if rate and node.tokens else None

    def pass_tokens(self, node: Node) -> int | None:
        """Tokens of a pass whose computing takes as long as the reading of the weights; None where that was not measured."""
        source = node.inputs.get("verifier")
        asked = (node.stage.name, source.digest if isinstance(source, Input) else "")
        if asked not in self._pass_tokens:
            self._pass_tokens[asked] = hiding_tokens(node, self._kin.passes(node.stage.name))
        return self._pass_tokens[asked]

    def require_room(self, nodes: Iterable[Node]) -> None:
        """Refuse nodes whose outputs would not fit the store; the free space is asked for only when they are known."""
        waiting = [node for node in nodes if node.output_bytes]
        if waiting:
            needed = sum(node.output_bytes for node in waiting)
            self.store.require_room(needed, self._max_bytes, f"the {waiting[0].stage.title} that would be made")

    def may_run(self, node: Node) -> Step:
        """A node of a plan that consumes something not yet known; what of its key is known must be computable."""
        self.shared_parts(node.stage)
        reasons = sorted({source.because for source in node.inputs.values() if isinstance(source, Pending)})
        step = Step(
            node.stage.name,
            node.name,
            "may run",
            reasons,
            tokens=node.tokens,
            output_bytes=node.output_bytes,
            devices=node.devices,
        )
        step.estimate, step.pass_tokens = self.estimate(node), self.pass_tokens(node)
        return step

    def giving(self) -> AbstractContextManager[None]:
        """While a run lasts: what it makes goes to the mirror, and at its end all of it is there."""
        return self.mirroring.giving() if self.mirroring else nullcontext()

    def lost_inputs(self, inputs: Iterable[Input | Pending], bring: bool = False) -> list[list[Decision]]:
        """The producers of blobs that are read but gone, marked as forced, in waves: each wave reads what those before it make.

        What the mirror has is not lost; ``bring`` brings it into the store. Raises ``UserError`` where a lost blob cannot be
        made again bit for bit, or where nothing in this flow makes it.
        """
        forced: dict[str, Decision] = {}
        frontier = self._absent(inputs, bring)
        while frontier:
            makers = [self._maker(source.ref) for source in frontier if source.ref]
            fresh = {maker.key: maker for maker in makers if not maker.forced}
            for source in frontier:
                if source.ref and (maker := self._makers[source.ref.digest]).key in fresh:
                    maker.forced, maker.step.status = True, "run"
                    maker.step.because = [f"blob of {source.ref.kind} {source.ref.digest[:12]} is missing"]
            forced |= fresh
            frontier = self._absent((source for maker in fresh.values() for source in maker.node.inputs.values()), bring)
        return self._waves(forced)

    def _absent(self, inputs: Iterable[Input | Pending], bring: bool) -> list[Input]:
        """Inputs whose blob neither the store nor the mirror has, each blob once."""
        read = {source.ref.digest: source for source in inputs if isinstance(source, Input) and source.ref}
        absent = {digest for digest in read if not self.store.has(digest)}
        if absent and self.mirroring:
            if bring:
                self.mirroring.bring(absent)
                absent = {digest for digest in absent if not self.store.has(digest)}
            else:
                absent -= self.mirroring.there(absent)
        return [read[digest] for digest in read if digest in absent]

    def _maker(self, ref: Ref) -> Decision:
        """The node that can make a lost blob again."""
        maker, name = self._makers.get(ref.digest), f"{ref.kind} {ref.digest[:12]}"
        if maker is None:
            raise UserError(f"{name} is missing from the store {self.store.root} and nothing in this flow makes it")
        if not maker.node.stage.reproducible:
            raise UserError(
                f"{name} is missing from the store {self.store.root}, and {maker.node.label} cannot make it again bit for "
                f"bit: restore the blob, or delete {self.records.path(maker.node.stage.name, maker.key)} to make a new one"
            )
        return maker

    def _waves(self, forced: dict[str, Decision]) -> list[list[Decision]]:
        depths: dict[str, int] = {}

        def depth(decision: Decision) -> int:
            if decision.key not in depths:
                sources = (s.ref.digest for s in decision.node.inputs.values() if isinstance(s, Input) and s.ref)
                before = {maker.key for digest in sources if (maker := self._makers.get(digest)) and maker.key in forced}
                depths[decision.key] = 1 + max((depth(forced[key]) for key in before), default=-1)
            return depths[decision.key]

        waves: list[list[Decision]] = []
        for decision in sorted(forced.values(), key=depth):
            if depth(decision) == len(waves):
                waves.append([])
            waves[-1].append(decision)
        return waves


def adopted_because(record: Record) -> list[str]:
    """Why a record stands for code that did not make it: ``["adopted (equal bytes)"]``; else empty."""
    adopted = record.lineage.get("adopted")
    if not adopted:
        return []
    because = f": {adopted['because']}" if adopted.get("because") else ""
    return [f"adopted ({adopted['by']}){because}"]


def digest_of(outputs: dict[str, Any]) -> str:
    """The digest that stands for a node's outputs in listings: its only one, or the first by name with their count."""
    refs = [outputs[name].digest for name in sorted(outputs)]
    return refs[0] if len(refs) == 1 else f"{refs[0]}+{len(refs) - 1}" if refs else ""
