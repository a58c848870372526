"""Runs of a real server and worker that are killed, cancelled, paused or forgotten: what was finished is kept."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.flows.test_crash import slow_extraction
from tests.projects import no_orphans, ran, wait_for
from tests.served import Served, serving, started

pytestmark = pytest.mark.serve
SECONDS = 20.0  # that Prefect may take to notice, on a machine that does other things


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, checkout: Path, cut_verifier: Path) -> Iterator[Served]:
    """All of a module's tests go on from what those before made. Retraining judges by replay alone, and so asks a person."""

    def settings_of(name: str, settings: dict[str, Any]) -> dict[str, Any]:
        return {**settings, "promotion": {"min_samples": 2}, "acceptance": {}} if name.startswith("retrain") else settings

    with serving(tmp_path_factory.mktemp("served") / "project", checkout, cut_verifier, settings_of) as served:
        yield served


def made(served: Served, stage: str) -> dict[str, int]:
    """When each node of a stage was recorded, by the record's name, in ns."""
    return {path.name: path.stat().st_mtime_ns for path in served.project.records(stage)}


def worker(served: Served) -> int:
    """The process id of the worker."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and b"\0worker\0start\0" in (line := read(entry / "cmdline")):
            parent = read(entry / "stat").rpartition(b")")[2].split()[1]
            if int(parent) == served.process.pid:
                return int(entry.name)
    raise AssertionError(f"no worker of process {served.process.pid}: {line!r}")


def cached(served: Served, run: str, stage: str) -> int:
    """How many of a stage's tasks a run found done; tasks are told as events, a moment after their run."""
    return [state for name, state in served.tasks(run) if name.startswith(stage)].count("Cached")


def read(path: Path) -> bytes:
    """A file of /proc, empty when its process has ended."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_killed_worker_is_replaced_and_its_run_retried(served: Served) -> None:
    slow_extraction(served.project, 2)
    run = served.start("train-draft")
    wait_for(lambda: made(served, "hidden_states"), 900, served.process)
    flow = int(served.ask(f"flow_runs/{run}", method="GET")["infrastructure_pid"])
    for pid in (worker(served), flow):
        os.kill(pid, signal.SIGKILL)
    no_orphans(served.project)
    told = served.wait_for_state(run, "CRASHED", seconds=SECONDS)
    assert told["message"] == "its worker was killed; Retry goes on from what was finished"
    before = made(served, "hidden_states")
    served.retry(run)
    assert served.wait_for_state(run, "COMPLETED", "FAILED")["type"] == "COMPLETED"
    after = made(served, "hidden_states")
    assert before.items() < after.items(), "shards were missing, and none was made twice"
    wait_for(lambda: cached(served, run, "hidden states") == len(before), 60)


def test_a_killed_run_is_told_by_its_worker(served: Served) -> None:
    """The command of its window runs once, when its children have ended."""
    served.project.edit("tasks/hidden_states.py", ".sleep(2)", ".sleep(300)")
    said = served.project.folder / "after.txt"
    children = f"pgrep -cf 'running[.]child.*{served.project.folder}/' | sed 's/^/children /' >> {said}"
    run = served.start("train-draft", window={"after": children})
    wait_for(served.project.children, 600, served.process)
    os.kill(int(served.ask(f"flow_runs/{run}", method="GET")["infrastructure_pid"]), signal.SIGKILL)
    no_orphans(served.project)
    served.wait_for_state(run, "CRASHED", seconds=SECONDS)
    assert wait_for(lambda: said.exists() and said.read_text(), SECONDS) == "children 0\n"


def test_what_a_killed_worker_leaves_is_ended(served: Served) -> None:
    """The run itself lives, and children of it compute."""
    run = served.start("train-draft")
    wait_for(served.project.children, 600, served.process)
    flow = int(served.ask(f"flow_runs/{run}", method="GET")["infrastructure_pid"])
    os.kill(worker(served), signal.SIGKILL)
    wait_for(lambda: not read(Path(f"/proc/{flow}/cmdline")), SECONDS)
    no_orphans(served.project)
    served.wait_for_state(run, "CRASHED", seconds=SECONDS)


def test_a_cancelled_run_ends_its_children(served: Served) -> None:
    before = made(served, "hidden_states")
    run = served.start("train-draft")
    wait_for(served.project.children, 600, served.process)
    state = {"type": "CANCELLING", "name": "Cancelling"}
    served.ask(f"flow_runs/{run}/set_state", {"state": state, "force": False})  # what the UI's Cancel does
    no_orphans(served.project)
    served.wait_for_state(run, "CANCELLED", seconds=SECONDS)
    assert made(served, "hidden_states") == before
    verified = served.project.eyas("verify", str(served.project.settings), "--deep")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert not [line for line in verified.stdout.splitlines() if line.startswith("left")], verified.stdout


def test_over_its_budget_a_run_waits_for_a_person(served: Served) -> None:
    """Who refuses and retries is asked again."""
    served.project.edit("tasks/hidden_states.py", ".sleep(300)", ".sleep(0)")
    run = served.start("train-draft", budget={"gpu_hours": 1e-9})
    before = made(served, "hidden_states")
    served.wait_for_state(run, "PAUSED")
    served.resume(run, approve=False)
    told = served.wait_for_state(run, "COMPLETED", "FAILED")
    assert told["type"] == "FAILED" and "GPU hours" in told["message"] and "resumed without approval" in told["message"]
    served.retry(run)
    served.wait_for_state(run, "PAUSED")
    assert made(served, "hidden_states") == before
    served.resume(run, approve=True)
    assert served.wait_for_state(run, "COMPLETED", "FAILED")["type"] == "COMPLETED"
    assert len(made(served, "hidden_states")) == 2 * len(before)


def champion(served: Served) -> str:
    """What `eyas champion` says."""
    return served.project.eyas("champion", str(served.project.settings)).stdout


def test_a_promotion_waits_for_a_person(served: Served) -> None:
    """The run leaves the worker until a person has promoted the draft; ``test_retrain_asks`` has one who keeps the champion."""
    run = served.start("retrain-weekly")
    told = served.wait_for_state(run, "PAUSED", "COMPLETED", "FAILED")
    assert told["name"] == "Suspended", told
    wait_for(lambda: not served.project.children(), 60)
    served.resume(run, promote=True, because="it answers well")
    told = served.wait_for_state(run, "COMPLETED", "FAILED")
    assert told["name"] == "Promoted" and "approved: it answers well" in champion(served), told
    shown = {"flow_run_id": {"any_": [run]}, "key": {"any_": ["promotion"]}}
    verdicts = {one["data"].splitlines()[0] for one in served.ask("artifacts/filter", {"artifacts": shown})}
    assert verdicts == {"# Waits", "# Promoted"}
    wait_for(lambda: {state for _, state in served.tasks(run)} == {"Cached", "Completed"}, 60)


def test_the_servers_database_is_deleted(served: Served) -> None:
    home = Path(served.project.environment["PREFECT_HOME"])
    nodes = served.project.nodes("plan")
    assert not ran(nodes)
    os.kill(served.process.pid, signal.SIGINT)
    served.process.wait(60)
    shutil.rmtree(home)
    with started(served.project) as again:
        run = again.start("train-draft")
        assert again.wait_for_state(run, "COMPLETED", "FAILED")["type"] == "COMPLETED"
        states = wait_for(lambda: (found := again.tasks(run)) and len(found) == len(nodes) and found, 60)
        assert {state for _, state in states} == {"Cached"}
