"""What 5,000 shards cost: plans and a run that hits everything, beside an empty Prefect flow, in one run.

    python -m benchmarks.scale [--shards 5000] [--repeats 3]

The store is real: every node's key is computed by the walk, its record and its (tiny) blobs are written by the store. Nothing
was computed, so only the contents of the blobs are made up. Each figure is the wall time of a whole process, the median of the
repeats, with the largest memory that it had.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from artifacts.kinds import KINDS
from artifacts.manifest import Ref
from artifacts.records import Record
from artifacts.stage import Input, Made, Node
from artifacts.store import ArtifactWriter
from benchmarks.cache import EMPTY_FLOW
from flows.planning import open_host
from flows.train_draft import train_draft
from running.cli import load_settings
from running.walk import Walk
from tasks.formats import PLOT
from tests.conftest import make_cut_verifier, make_whole_verifier
from tests.projects import Project, copy_checkout, make_project, prefect_server

_OUTPUTS = {
    ("hidden_states", "compute_passes"): {"states": "hidden_states", "stats": "state_stats"},
    ("validation", "compute"): {"check": "shard_check"},
    ("validation", "merge"): {"report": "validation_report", "quarantine": "quarantine"},
    ("vocabulary", "compute"): {"vocabulary": "vocabulary"},
    ("training", "compute"): {"draft": "draft", "start": "draft_start", "curves": "curves"},
    ("acceptance", "compute_decoding"): {"acceptance": "acceptance"},
    ("acceptance", "compute_replay"): {"acceptance": "acceptance"},
    ("export", "compute"): {"export": "export"},
}
# Started from here, a process would begin with this one's memory as its largest.
_WEIGH = (
    "import resource, subprocess, sys; code = subprocess.call(sys.argv[1:]); "
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr); sys.exit(code)"
)
_FACTS: dict[str, dict[str, Any]] = {
    "token_shard": {"tokens": 512, "samples": 4},
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
        writer.write(PLOT, b"")
        return self.walk.store.commit(writer.seal(**facts_of(kind)))


def prepare(folder: Path, api: str, shards: int) -> Project:
    """A project of one file whose every node is recorded."""
    verifier = make_cut_verifier(make_whole_verifier(folder / "whole"), folder / "cut")
    copy_checkout(folder / "checkout")
    project = make_project(folder / "project", folder / "checkout", verifier, api)
    project.edit("settings.yaml", "  - b.jsonl\n", "")
    os.chdir(project.folder)
    settings = load_settings(project.settings, [])
    host = open_host(settings)
    sync, os.fsync = os.fsync, lambda fd: None  # nobody pulls the plug here, and 100,000 syncs would take minutes
    try:
        with host.store.workspace() as workspace:
            train_draft(settings, Recorder(host.walk(project.folder), workspace, shards), host.memo)
    finally:
        os.fsync = sync
    return project


def measured(command: list[str], project: Project) -> tuple[float, float]:
    """Wall seconds and the largest resident memory (MB) of a process that must succeed."""
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-S", "-c", _WEIGH, *command],
        env=project.environment,
        cwd=project.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return time.monotonic() - started, int(done.stderr.split()[-1]) / 1024


def measure(project: Project, repeats: int) -> dict[str, tuple[float, float]]:
    """Median seconds and largest memory by name; the kinds take turns, so that the machine's drift meets all of them."""
    plan, run = (project.command(command, str(project.settings), "--json") for command in ("plan", "run"))
    kinds = {"empty flow": [sys.executable, "-c", EMPTY_FLOW], "plan": plan, "no-op": run}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
    for _ in range(repeats):
        for name, command in kinds.items():
            found[name].append(measured(command, project))
    project.edit("kimi_adapters/trainer.py", "Progress = Callable", "EDITED = 1\nProgress = Callable")
    found["plan, trainer edited"] = [measured(plan, project) for _ in range(repeats)]
    project.edit("kimi_adapters/layer_stream.py", "\nTOKEN_CHUNK", "\nEDITED = 1\nTOKEN_CHUNK")
    found["plan, extraction edited"] = [measured(plan, project) for _ in range(repeats)]
    return {
        name: (statistics.median(seconds for seconds, _ in values), max(memory for _, memory in values))
        for name, values in found.items()
    }


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shards", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "home").mkdir()
        with prefect_server(folder / "home") as api:
            started = time.monotonic()
            project = prepare(folder, api, chosen.shards)
            records = sum(1 for _ in (project.store / "records").glob("*/*.json"))
            print(f"prepared {records} records in {time.monotonic() - started:.0f} s", flush=True)
            found = measure(project, chosen.repeats)
    floor = found["empty flow"][0]
    print(f"{'what':26} {'median s':>9} {'over floor s':>13} {'memory MB':>10}")
    for what, (seconds, memory) in found.items():
        over = f"{seconds - floor:13.2f}" if what == "no-op" else " " * 13
        print(f"{what:26} {seconds:9.2f} {over} {memory:10.0f}")


if __name__ == "__main__":
    main()
