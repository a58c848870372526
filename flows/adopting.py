"""``eyas adopt``: some nodes of a costly stage are made again; if they are as they were, the others are not."""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from artifacts.records import Record
from artifacts.stage import Input, Node
from errors import UserError
from flows.planning import open_host
from flows.train_draft import train_draft
from running.adopting import Candidate, candidates, changes, equal, take_over
from running.devices import DevicePool
from running.execution import Execution
from running.host import Host
from running.plan import PlanExecutor
from running.snapshot import new_run_folder, take_snapshot
from running.walk import Decision, Walk
from tasks import adoption
from tasks.handles import Verifier
from tasks.settings import Settings

log = logging.getLogger("eyas")
STATES = "states"


@dataclass(frozen=True)
class Adopted:
    """What came of a group: how many nodes were made again, how many taken over, what differs in the code, what was shown."""

    proof: int
    rest: int
    changes: list[str]
    how: dict[str, Any]


class Adoption:
    """One stage's adoption under settings; ``shards`` nodes of each group are made again."""

    def __init__(self, settings: Settings, stage: str, shards: int, because: str | None) -> None:
        self.settings, self.stage, self.shards, self.because = settings, stage, shards, because

    def run(self) -> list[Adopted]:
        """Prove and take over, group by group. ``UserError`` where nothing can be taken over or what was made again differs."""
        settings, host = self.settings, open_host(self.settings)
        run_folder = new_run_folder(host.state)
        walk = host.walk(take_snapshot(run_folder))
        executor = PlanExecutor(walk)
        made = train_draft(settings, executor, host.memo, host.forgotten.of)
        groups = self._groups(host, executor.decisions)
        pool = DevicePool(host.state, settings.devices, settings.running.cpu_slots, settings.running.share_devices)
        with host.store.in_use(), host.store.workspace() as workspace, walk.giving():
            execution = Execution(walk, host.state, run_folder, pool, workspace)
            try:
                return [self._group(host, walk, execution, group, made.verifier) for group in groups]
            finally:
                execution.children.stop()

    def _groups(self, host: Host, decisions: Sequence[Decision]) -> list[list[Candidate]]:
        mine = [decision for decision in decisions if decision.node.stage.name == self.stage]
        if not mine:
            raise UserError(
                f"no node of a stage {self.stage} is known yet: correct the name, or run what comes before it first"
            )
        missing = [decision for decision in mine if decision.record is None]
        if not missing:
            raise UserError(f"all {len(mine)} nodes of {self.stage} hit: there is nothing to adopt")
        if not missing[0].node.stage.reproducible:
            raise UserError(f"{self.stage} does not give the same twice, so making some of it again would show nothing: run it")
        groups = candidates(host.records, mine)
        if not groups:
            raise UserError(
                f"no earlier node of {self.stage} differs from these in code and library versions alone: eyas plan says in "
                "what they differ"
            )
        return groups

    def _group(self, host: Host, walk: Walk, execution: Execution, group: list[Candidate], verifier: Verifier) -> Adopted:
        differing = changes(group)
        proof = [group[number] for number in self._telling(walk, group)]
        rest = [one for one in group if one not in proof and one.decision.record is None]
        log.info("adopt: %d nodes of %s differ in %s; %d are made again", len(group), self.stage, differing[0], len(proof))
        made = self._make(walk, execution, [one.decision for one in proof])
        how: dict[str, Any] = {"by": "equal bytes"}
        if not equal(proof, made):
            how = self._tolerated(walk, execution, proof, made, verifier)
        if self.because:
            how["because"] = self.because
        take_over(host, walk, rest, proof, how)
        return Adopted(len(proof), len(rest), differing, how)

    def _telling(self, walk: Walk, group: list[Candidate]) -> list[int]:
        sources = [one.decision.node.inputs.get("ids") for one in group]
        folders = [walk.store.open(source.ref.digest) for source in sources if isinstance(source, Input) and source.ref]
        if len(folders) == len(group):
            return adoption.telling_shards(folders, self.shards)
        return sorted(sorted(range(len(group)), key=lambda number: -group[number].decision.node.tokens)[: self.shards])

    def _make(self, walk: Walk, execution: Execution, decisions: list[Decision]) -> list[Record]:
        missing = [decision for decision in decisions if decision.record is None]
        execution.expect(missing)
        with ThreadPoolExecutor(len(decisions)) as threads:
            return list(threads.map(lambda decision: decision.record or execution.do(decision), decisions))

    def _tolerated(
        self, walk: Walk, execution: Execution, proof: list[Candidate], made: list[Record], verifier: Verifier
    ) -> dict[str, Any]:
        """What was shown of states whose bytes differ; ``UserError`` where they are too far apart or nobody says why."""
        limits = self.settings.adoption
        found = self._compare(walk, execution, proof, made, verifier)
        error, agreement = max(one["relative_error"] for one in found), min(one["agreement"] for one in found)
        text = (
            f"{len(made)} shards made again have a relative error of {error:.2e} and {agreement:.2%} of their likeliest tokens"
        )
        if error > limits.max_relative_error or agreement < limits.min_agreement:
            raise UserError(
                f"{text}, past adoption.max_relative_error {limits.max_relative_error} or adoption.min_agreement "
                f"{limits.min_agreement}: run the flow, which extracts again"
            )
        if not self.because:
            raise UserError(f'{text}, within the limits but not the same bytes: to adopt the rest say why with --because "…"')
        return {"by": "tolerance", "relative_error": error, "agreement": agreement}

    def _compare(
        self, walk: Walk, execution: Execution, proof: list[Candidate], made: list[Record], verifier: Verifier
    ) -> list[dict[str, Any]]:
        nodes: list[Node] = []
        for one, again in zip(proof, made, strict=True):
            before, after = one.before.outputs.get(STATES), again.outputs.get(STATES)
            if before is None or after is None:
                raise UserError(
                    f"{one.decision.node.label} gives other bytes than before: run the flow, which makes all of it again"
                )
            nodes.append(adoption.node(Input.of(before), Input.of(after), one.decision.node.name, verifier))
        found = []
        for decision in walk.decide(nodes):
            record = decision.record or execution.do(decision)
            found.append(record.outputs["comparison"].facts)
        return found


def adopt(settings: Settings, stage: str, shards: int, because: str | None) -> list[Adopted]:
    """Take over what older code made of ``stage`` where ``shards`` nodes made again show that it may be."""
    if shards < 1:
        raise UserError(f"--shards {shards} would show nothing: give 1 or more")
    return Adoption(settings, stage, shards, because).run()
