"""Projects whose nodes are recorded as if they had run, for what depends on their number and not on what they computed."""

import os
import sys
from collections.abc import Iterable
from contextlib import chdir
from pathlib import Path
from typing import Any

from artifacts.kinds import KINDS
from artifacts.manifest import Ref
from artifacts.records import Record
from artifacts.stage import Input, Made, Node
from artifacts.writer import ArtifactWriter
from flows.planning import open_host
from flows.report_data import PLOTS
from flows.train_draft import train_draft
from running.settings_file import load_settings
from running.walk import Walk
from tasks.curves import curves_parquet
from tasks.formats import ACCEPTANCE, CONVERSATIONS, CURVES, PLOT, REPORT, SAMPLES
from tests.projects import Project

_OUTPUTS = {
    ("synthesis", "compute"): {"conversations": "conversations"},
    ("hidden_states", "compute_passes"): {"states": "hidden_states", "stats": "state_stats"},
    ("validation", "compute_shards"): {"check": "shard_check"},
    ("validation", "merge"): {"report": "validation_report", "quarantine": "quarantine"},
    ("vocabulary", "compute"): {"vocabulary": "vocabulary"},
    ("training", "compute"): {"draft": "draft", "start": "draft_start", "curves": "curves"},
    ("acceptance", "compute_decoding"): {"acceptance": "acceptance"},
    ("acceptance", "compute_replay"): {"acceptance": "acceptance"},
    ("export", "compute"): {"export": "export"},
}
_FILES: dict[str, dict[str, bytes]] = {  # what the run's report reads
    "conversations": {CONVERSATIONS: b"{}\n"},
    "loss_masks": {SAMPLES: b""},
    "acceptance": {PLOT: b"", ACCEPTANCE: b'{"cases": []}'},
    "curves": {CURVES: curves_parquet([dict.fromkeys(("step", "loss", "lr", "grad_norm", "tokens_per_s", "acc_0"), 1.0)])},
    "validation_report": {REPORT: b'{"slices": []}', **dict.fromkeys(PLOTS, b"")},
}
_FACTS: dict[str, dict[str, Any]] = {
    "token_shard": {"tokens": 512, "samples": 4},
    "loss_masks": {"train_supervised": 200, "held_out_samples": 1, "held_out_supervised": 50},
    "vocabulary": {"coverage": 1.0},
    "acceptance": {"method": "replay", "per_position": [0.5], "untrained_per_position": [0.0]},
}


def facts_of(kind: str) -> dict[str, Any]:
    """Every fact that the kind may have, with a value of its type."""
    plain = {name: (of[0] if isinstance(of, tuple) else of)() for name, of in KINDS[kind].items()}
    return plain | _FACTS.get(kind, {})


class Recorder:
    """An executor that records nodes as if they had run."""

    def __init__(self, walk: Walk, workspace: Path, shards: int) -> None:
        self.walk, self._workspace, self._shards = walk, workspace, shards
        self._made = 0

    def run(self, node: Node) -> Made:
        """Record one node."""
        return self.map([node])[0]

    def map(self, nodes: Iterable[Node]) -> list[Made]:
        """Record nodes."""
        return [self._record(node) for node in nodes]

    def require(self, made: Made) -> None:
        """Everything is there."""

    def _record(self, node: Node) -> Made:
        (decision,) = self.walk.decide([node])
        outputs = {name: self._blob(kind) for name, kind in self._kinds(node).items() if kind in KINDS}
        sources = {name: source for name, source in node.inputs.items() if isinstance(source, Input)}
        lineage = {
            "inputs": {
                n: {"digest": s.digest, "blob": s.ref.digest if s.ref else None, "path": s.path} for n, s in sources.items()
            },
            "seconds": 1.0,
            "finished": "2026-11-30T00:00:00+00:00",
            "device": "cpu:0",
            "python": sys.version.split()[0],
            "git_commit": "0" * 40,
            "tokens": node.tokens,
            "estimated_by": node.tokens,
        }
        name = node.stage.name
        self.walk.records.put(
            Record(key=decision.key, stage=name, node=node.name, parts=decision.parts, outputs=outputs, lineage=lineage)
        )
        return Made(node, outputs)

    def _kinds(self, node: Node) -> dict[str, str]:
        if node.stage.name != "corpus":
            return _OUTPUTS[node.stage.name, node.entry]
        ids = {f"ids.{number}": "token_shard" for number in range(self._shards)}
        return ids | {f"masks.{number}": "loss_masks" for number in range(self._shards)} | {"rejects": "rejects"}

    def _blob(self, kind: str) -> Ref:
        self._made += 1
        writer = ArtifactWriter(kind, self._workspace)
        writer.write("content", b"%d" % self._made)
        for name, data in _FILES.get(kind, {}).items():
            writer.write(name, data)
        return self.walk.store.commit(writer.seal(**facts_of(kind)))


def record(project: Project, shards: int) -> None:
    """Record every node of a project of one source, with so many shards, by the project's own code."""
    with chdir(project.folder):
        settings = load_settings(project.settings, [])
        host = open_host(settings)
        sync, os.fsync = os.fsync, lambda fd: None  # nobody pulls the plug here, and 100,000 syncs would take minutes
        try:
            with host.store.workspace() as workspace:
                train_draft(settings, Recorder(host.walk(project.folder), workspace, shards), host.memo, host.forgotten.of)
        finally:
            os.fsync = sync
