"""What 5,000 shards cost: plans and a run that hits everything, beside an empty Prefect flow, in one run.

    python -m benchmarks.scale [--shards 5000] [--repeats 3]

The store is real: every node's key is computed by the walk, its record and its (tiny) blobs are written by the store. Nothing
was computed, so only the contents of the blobs are made up. Each figure is the wall time of a whole process, the median of the
repeats, with the largest memory that it had.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.cache import EMPTY_FLOW
from tests.conftest import make_cut_verifier, make_whole_verifier
from tests.projects import Project, copy_checkout, make_project
from tests.recorded import record
from tests.servers import prefect_server

# Started from here, a process would begin with this one's memory as its largest.
_WEIGH = (
    "import resource, subprocess, sys; code = subprocess.call(sys.argv[1:]); "
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr); sys.exit(code)"
)


def prepare(folder: Path, api: str, shards: int) -> Project:
    """A project of one file whose every node is recorded."""
    verifier = make_cut_verifier(make_whole_verifier(folder / "whole"), folder / "cut")
    copy_checkout(folder / "checkout")
    project = make_project(folder / "project", folder / "checkout", verifier, api)
    project.edit("settings.yaml", "  - b.jsonl\n", "")
    record(project, shards)
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
    project.edit("kimi_adapters/transport.py", "\nTOKEN_CHUNK", "\nEDITED = 1\nTOKEN_CHUNK")
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
