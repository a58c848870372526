"""What the cache costs: an empty Prefect flow beside our no-op, a training edit and a plan, in one run.

    python -m benchmarks.cache [--shards 64] [--repeats 3]

Each figure is the wall time of a whole process, as a user waits for it: the median of the repeats, then its distance to the
floor (an empty flow in the same mode). The verifier is SmolLM2 cut to four layers; the machinery around it is the whole one.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.conftest import make_cut_verifier, make_whole_verifier
from tests.projects import TOPICS, Project, copy_checkout, make_project, write_corpus
from tests.servers import prefect_server

EMPTY_FLOW = "from prefect import flow\n@flow\ndef empty(): pass\nempty()"


def seconds_of(command: list[str], environment: dict[str, str], folder: Path) -> float:
    """Wall time of a process that must succeed."""
    started = time.monotonic()
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return time.monotonic() - started


def without_server(environment: dict[str, str]) -> dict[str, str]:
    """The same environment with an ephemeral server instead of the running one."""
    return {name: value for name, value in environment.items() if name != "PREFECT_API_URL"}


def prepare(folder: Path, api: str, shards: int) -> Project:
    """A finished project with at least ``shards`` shards of extraction."""
    whole = make_whole_verifier(folder / "whole")
    verifier = make_cut_verifier(whole, folder / "cut")
    copy_checkout(folder / "checkout")
    project = make_project(folder / "project", folder / "checkout", verifier, api)
    for i in range(shards * 2 // 9):  # each adds 32 conversations, about 4.6 shards
        write_corpus(project.folder / "a.jsonl", TOPICS, start=1000 + 100 * i)
    project.edit("settings.yaml", "epochs: 2", "epochs: 1")
    nodes = project.nodes("run")
    print(f"prepared: {sum(node['stage'] == 'hidden_states' for node in nodes)} shards, {len(nodes)} nodes", flush=True)
    return project


def measure(project: Project, repeats: int) -> dict[str, float]:
    """Median seconds by name; the kinds take turns, so that the machine's drift meets all of them."""
    empty = [sys.executable, "-c", EMPTY_FLOW]
    run, plan = (project.command(command, str(project.settings), "--json") for command in ("run", "plan"))
    server, alone = project.environment, without_server(project.environment)
    kinds = {
        "empty flow, running server": (empty, server),
        "no-op, running server": (run, server),
        "empty flow, ephemeral server": (empty, alone),
        "no-op, ephemeral server": (run, alone),
        "plan": (plan, server),
    }
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(repeats):
        for name, (command, environment) in kinds.items():
            times[name].append(seconds_of(command, environment, project.folder))
    return {name: statistics.median(values) for name, values in times.items()}


def after_edit(project: Project) -> float:
    """Seconds of the run after an edit of the trainer: training, acceptance and export run, 64 shards hit."""
    project.edit("kimi_adapters/trainer.py", "Progress = Callable", "EDITED = 1\nProgress = Callable")
    return seconds_of(project.command("run", str(project.settings), "--json"), project.environment, project.folder)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shards", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "home").mkdir()
        with prefect_server(folder / "home") as api:
            project = prepare(folder, api, chosen.shards)
            found = measure(project, chosen.repeats)
            found["after one training edit"] = after_edit(project)
    floors = {mode: found[f"empty flow, {mode} server"] for mode in ("running", "ephemeral")}
    print(f"{'what':32} {'median s':>9} {'over floor s':>13} {'ratio':>6}")
    for what, value in found.items():
        mode = "ephemeral" if "ephemeral" in what else "running"
        over = value - floors[mode]
        print(f"{what:32} {value:9.2f} {over:13.2f} {value / floors[mode]:6.2f}")


if __name__ == "__main__":
    main()
