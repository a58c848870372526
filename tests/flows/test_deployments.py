"""A schedule and an event that really start runs: `make serve` in a project, its server, its worker, its deployments."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from running.leftovers import MARK
from tests.projects import ROOT
from tests.served import Served, serving

pytestmark = pytest.mark.serve


def small(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Little to do. Retraining reads what synthesis lands and finds it too long, so that it ends after one child."""
    if name == "synthesize":
        return {**settings, "data": {"prompts": ["prompts.jsonl"]}, "synthesis": {"max_new_tokens": 8}}
    return {**settings, "data": {"conversations": [".eyas/landed"]}, "corpus": {**settings["corpus"], "max_length": 4}}


def marked_processes(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, checkout: Path, cut_verifier: Path) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served") / "project", checkout, cut_verifier, small) as served:
        yield served


def test_what_synthesis_lands_starts_a_retraining(served: Served) -> None:
    run = served.ask(f"deployments/{served.deployment('synthesize')['id']}/create_flow_run", {})
    answered = served.ended("synthesize")
    assert answered["id"] == run["id"] and answered["state"]["type"] == "COMPLETED", answered["state"]
    landed = served.project.folder / ".eyas" / "landed"
    (file,) = landed.iterdir()
    started = served.ended("retrain-on-data")
    assert started["parameters"]["landed"] == str(landed) and started["created_by"]["type"] == "AUTOMATION"
    assert started["state"]["name"] == "Refused" and f"{file.name} gave no usable conversation" in started["state"]["message"]


def test_a_schedule_starts_a_retraining(served: Served) -> None:
    deployment = served.deployment("retrain-weekly")
    (weekly,) = deployment["schedules"]
    assert weekly["schedule"]["cron"] == "0 3 * * 0" and weekly["active"]
    soon = (datetime.now(UTC) + timedelta(seconds=10)).isoformat()
    schedule = {"schedule": {"interval": 60, "anchor_date": soon}, "active": True}
    served.ask(f"deployments/{deployment['id']}/schedules/{weekly['id']}", schedule, "PATCH")
    started = served.ended("retrain-weekly")
    assert started["auto_scheduled"] and started["state"]["type"] == "COMPLETED", started["state"]


def test_automations_that_ship_can_be_applied(served: Served) -> None:
    for path in sorted((ROOT / "deployments" / "automations").glob("*.yaml")):
        command = [sys.executable, "-m", "prefect", "automation", "create", "--from-file", str(path)]
        environment = {**served.project.environment, "PREFECT_API_URL": f"{served.address}/api"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    names = {one["name"] for one in served.ask("automations/filter", {})}
    assert {"eyas-outcome", "eyas-failure", "eyas-lost"} <= names
    refused = "prefect.flow-run.Refused"  # what the runs of the tests before have ended with
    assert refused in (ROOT / "deployments" / "automations" / "tell_of_outcomes.yaml").read_text()
    assert served.ask("events/filter", {"filter": {"event": {"name": [refused]}}})["total"] >= 1


def test_ctrl_c_leaves_nothing_behind(served: Served) -> None:
    children = [
        int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _parent(entry) == served.process.pid
    ]
    mark = next(v for pid in children for v in _environment(pid) if v.startswith(f"{MARK}=")).partition("=")[2]
    assert len(marked_processes(mark)) >= 2, "server and worker"
    os.kill(served.process.pid, signal.SIGINT)
    assert served.process.wait(60) == 0
    assert marked_processes(mark) == []


def _parent(entry: Path) -> int:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _environment(pid: int) -> list[str]:
    return (Path("/proc") / str(pid) / "environ").read_bytes().decode().split("\0")
