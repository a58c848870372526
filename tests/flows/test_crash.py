"""Whatever dies, nothing that finished is lost and nothing is left running."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from kimi_adapters.training_checkpoint import read_checkpoint, save_checkpoint
from tasks.curves import read_curves
from tasks.formats import CURVES
from tests.projects import Project, no_orphans, wait_for

Finished = tuple[Project, list[dict[str, Any]]]
SLOW_SHARDS = (
    "tasks/hidden_states.py",
    "    chosen, total = job.settings",
    "    __import__('time').sleep(0.5)\n    chosen, total = job.settings",
)


def slow_extraction(project: Project, seconds: float = 0.5) -> None:
    """So much more a shard, so that a test can hit the middle."""
    path, before, after = SLOW_SHARDS
    project.edit(path, before, after.replace("0.5", str(seconds)))


def slow_training(project: Project) -> None:
    """A fifth of a second more for each of the steps about the first checkpoints."""
    project.edit(
        "kimi_adapters/training_loop.py",
        "        self.global_step += 1\n",
        "        self.global_step += 1\n        time.sleep(0.2 if self.global_step < 16 else 0)\n",
    )


def checkpoints(project: Project) -> list[Path]:
    """Training checkpoints that lie under a key."""
    return sorted((project.folder / "state/work").glob("*/checkpoints/*.safetensors"))


def digest_of(nodes: list[dict[str, Any]], stage: str) -> list[str]:
    """The digests of a stage's nodes."""
    return [node["digest"] for node in nodes if node["stage"] == stage]


def curves(project: Project) -> dict[str, list[float | None]]:
    """The training curves of the newest draft."""
    with open(project.blob_of("training", "curves") / CURVES, "rb") as file:
        return read_curves(file)


MARK = 123.0


def mark(checkpoint: Path) -> None:
    """Write a loss that no training gives into a checkpoint's curves, so that the run that goes on from it can be told."""
    read = read_checkpoint(checkpoint)
    read.state["curves"][0]["loss"] = MARK
    save_checkpoint(checkpoint.parent, read.step, read.tensors, read.state)


def test_the_flow_is_killed_in_extraction_and_in_training(fresh: Project, finished: Finished) -> None:
    slow_extraction(fresh)
    slow_training(fresh)
    run = fresh.start()
    wait_for(lambda: fresh.records("hidden_states"), process=run)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    no_orphans(fresh)
    done = {path.name for path in fresh.records("hidden_states")}
    shards = len(digest_of(finished[1], "hidden_states"))
    assert 0 < len(done) < shards, "the kill came in mid-extraction"

    run = fresh.start()
    wait_for(lambda: checkpoints(fresh), process=run)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    no_orphans(fresh)
    assert {path.name for path in fresh.records("hidden_states")} > done
    assert not fresh.records("training")
    resumed_from = int(checkpoints(fresh)[-1].stem.split("-")[1])
    mark(checkpoints(fresh)[-1])

    nodes = fresh.nodes("run")
    status = {(node["stage"], node["node"]): node["status"] for node in nodes}
    assert {s for (stage, _), s in status.items() if stage in ("corpus", "hidden_states", "validation")} == {"hit"}
    assert digest_of(nodes, "hidden_states") == digest_of(finished[1], "hidden_states")
    trained = fresh.blob_of("training", "draft")
    assert trained.name == finished[0].blob_of("training", "draft").name, "the same weights bit for bit"
    assert curves(fresh)["lr"] == curves(finished[0])["lr"]
    assert 0 < resumed_from < len(curves(fresh)["lr"])
    assert curves(fresh)["loss"][0] == MARK, "it went on from its last checkpoint and did not begin anew"
    log = max((fresh.folder / "state/runs").glob("*/children/training-*.json"), key=lambda path: path.stat().st_mtime)
    assert log.exists() and not checkpoints(fresh), "checkpoints go when the node is recorded"


@pytest.mark.serve  # two minutes; tests/running/test_lost_children.py kills children, and the test above a training
def test_children_are_killed_in_extraction_and_in_training(fresh: Project, finished: Finished) -> None:
    slow_extraction(fresh)
    slow_training(fresh)
    run = fresh.start()
    wait_for(lambda: fresh.records("hidden_states"), process=run)
    for child in fresh.children():
        os.kill(child, signal.SIGKILL)
    wait_for(lambda: checkpoints(fresh), process=run)
    for child in fresh.children():
        os.kill(child, signal.SIGKILL)
    output, errors = run.communicate(timeout=400)
    assert run.returncode == 0, errors[-3000:]
    nodes = json.loads(output)
    assert digest_of(nodes, "hidden_states") == digest_of(finished[1], "hidden_states")
    assert fresh.blob_of("training", "draft").name == finished[0].blob_of("training", "draft").name
    no_orphans(fresh)


def test_two_runs_at_once_do_each_node_once(project: Project) -> None:
    slow_extraction(project)
    runs = [project.start(), project.start()]
    results = []
    for run in runs:
        output, errors = run.communicate(timeout=400)
        assert run.returncode == 0, errors[-3000:]
        results.append([node for node in json.loads(output) if node["stage"] == "hidden_states"])
    for mine, other in zip(*results, strict=True):
        assert sorted([mine["status"], other["status"]]) == ["hit", "run"] or mine["status"] == other["status"] == "hit"
        assert mine["digest"] == other["digest"]
    ran = sum(node["status"] == "run" for nodes in results for node in nodes)
    assert ran == len(results[0]), "each shard ran in one of the two runs"


def test_the_holder_of_the_locks_is_killed_and_the_other_proceeds(project: Project) -> None:
    project.edit(*SLOW_SHARDS)
    before = len(project.records("hidden_states"))
    holder = project.start()
    wait_for(lambda: project.children(), process=holder)
    other = project.start()
    wait_for(lambda: len(project.records("hidden_states")) > before, process=holder)
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    output, errors = other.communicate(timeout=400)
    assert other.returncode == 0, errors[-3000:]
    assert any(node["status"] == "run" for node in json.loads(output) if node["stage"] == "hidden_states")
    no_orphans(project)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_told_to_stop_ends_its_children(project: Project, how: signal.Signals) -> None:
    slow_extraction(project, 300)
    run = project.start()
    wait_for(lambda: project.children(), process=run)
    run.send_signal(how)
    no_orphans(project)
    _, errors = run.communicate(timeout=60)
    assert run.returncode != 0
    if how == signal.SIGINT:
        assert run.returncode == 130 and "what was finished is kept" in errors and "Traceback" not in errors
