"""Nodes done in the test's own process: the real walk, stages, store and records, without Prefect, children and devices."""

import importlib
import json
import shutil
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from artifacts.records import Record
from artifacts.stage import Input, Made, Node
from running.job import Job, read_outputs
from running.walk import Decision, Walk


class InProcess:
    """An executor that runs what is not recorded, one node after another; ``ran`` counts the nodes of each stage that ran."""

    def __init__(self, walk: Walk, workspace: Path) -> None:
        self.walk, self._workspace = walk, workspace
        self.ran: dict[str, int] = {}

    def run(self, node: Node) -> Made:
        """Do one node."""
        return self.map([node])[0]

    def map(self, nodes: Iterable[Node]) -> list[Made]:
        """Do nodes; the first failure is raised."""
        made = []
        for decision in self.walk.decide(nodes):
            self.walk.steps.append(decision.step)
            record = decision.record or self.walk.records.get(decision.node.stage.name, decision.key) or self._do(decision)
            decision.step.digest = next(iter(record.outputs.values())).digest
            made.append(Made(decision.node, record.outputs))
        return made

    def require(self, made: Made) -> None:
        """Nothing is ever lost here."""

    def _do(self, decision: Decision) -> Record:
        node, events = decision.node, list[dict[str, Any]]()
        sources = {name: source for name, source in node.inputs.items() if isinstance(source, Input)}
        paths = {n: self.walk.store.open(s.ref.digest) if s.ref else Path(str(s.path)) for n, s in sources.items()}
        scratch = self._workspace / decision.key
        scratch.mkdir(parents=True, exist_ok=True)
        job = Job(
            key=decision.key,
            label=node.label,
            settings=json.loads(json.dumps(node.settings)),
            knobs=node.knobs,
            paths=paths,
            digests={name: source.digest for name, source in sources.items()},
            scratch=scratch,
            device="cpu",
            threads=1,
            workspace=self._workspace,
            send=events.append,
        )
        entry = getattr(importlib.import_module(node.stage.module), node.entry)
        entry([job] if node.stage.gathers else job)
        outputs = read_outputs(json.loads(json.dumps(events[-1])))
        refs = {name: self.walk.store.commit(sealed) for name, sealed in outputs.items()}
        lineage = {
            "inputs": {
                n: {"digest": s.digest, "blob": s.ref.digest if s.ref else None, "path": s.path} for n, s in sources.items()
            },
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "reproducible": node.stage.reproducible,
        }
        record = Record(
            key=decision.key, stage=node.stage.name, node=node.name, parts=decision.parts, outputs=refs, lineage=lineage
        )
        self.walk.records.put(record)
        self.ran[node.stage.name] = self.ran.get(node.stage.name, 0) + 1
        shutil.rmtree(scratch)
        return record
