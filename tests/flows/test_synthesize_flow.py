"""`eyas synthesize` through Prefect, where the answers are recorded: what it may spend, when it may, and whom it tells."""

import json
from contextlib import chdir
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.budget import over_budget
from flows.planning import open_host
from flows.synthesize import plan_answers, synthesize
from running.settings_file import load_settings
from tasks.settings import Settings
from tests.deployed import deployed_run, execute, resume, said, state_of
from tests.projects import Project, make_project, wait_for
from tests.recorded import Recorder

PROMPTS = ["data.prompts=[prompts.jsonl]", "synthesis.prompts_per_task=1", "synthesis.max_new_tokens=36"]


def chosen(*more: str) -> list[str]:
    return [word for one in (*PROMPTS, *more) for word in ("--set", one)]


def settings_of(project: Project, *more: str) -> Settings:
    return load_settings(project.settings, [*PROMPTS, *more])


@pytest.fixture
def answered(tmp_path: Path, checkout: Path, cut_verifier: Path, prefect_api: str) -> Project:
    """A project whose two prompts are answered, each at 36 tokens a second; nothing has landed where the runs land."""
    project = make_project(tmp_path / "project", checkout, cut_verifier, prefect_api)
    with chdir(project.folder):
        settings = settings_of(project)
        host = open_host(settings)
        with host.store.workspace() as workspace:
            synthesize(settings, Recorder(host.walk(project.folder), workspace, 0), host, tmp_path / "elsewhere")
    return project


def ask_more(project: Project) -> None:
    """A prompt that is not answered yet."""
    with open(project.folder / "prompts.jsonl", "a") as file:
        file.write(json.dumps({"id": "p2", "messages": [{"role": "user", "content": "And ferns?"}]}) + "\n")


def test_its_hours_are_those_of_what_is_not_answered(answered: Project, prefect_api: str) -> None:
    """On the command line it is refused before Prefect starts; a deployment's run asks a person."""
    limit = "budget.gpu_hours=1e-9"
    with chdir(answered.folder):
        settings = settings_of(answered, limit)
        assert over_budget(settings, plan_answers(settings, open_host(settings), answered.folder)) is None
        ask_more(answered)
        told = over_budget(settings, plan_answers(settings, open_host(settings), answered.folder))
    assert told and "up to 0.000278 GPU hours (synthesis 0.000278)" in told
    done = answered.eyas("synthesize", str(answered.settings), *chosen(limit))
    assert done.returncode == 2 and "starting Prefect" not in done.stderr and f"eyas: {told}" in done.stderr
    with temporary_settings({PREFECT_API_URL: prefect_api}), get_client(sync_client=True) as api:
        run = deployed_run(api, "synthesize", "flows/served_synthesize.py:synthesize_flow", answered.folder, settings)
        executed = execute(answered, run)
        resume(api, run, "Paused", approve=False)
        executed.wait(240)
        state = state_of(api, run)
    assert state.name == "Failed" and "resumed without approval" in str(state.message), said(answered)
    assert len(answered.records("synthesis")) == 2


def events(api: Any, name: str) -> list[dict[str, Any]]:
    """What has been said of files in a folder."""
    resource = {"id": [f"eyas.data.{name}"]}
    found = api._client.post("/events/filter", json={"filter": {"resource": resource}}).json()
    return [event["payload"] for event in found["events"]]


def test_what_landed_is_told_although_the_run_was_ended_before_it_said_so(answered: Project, prefect_api: str) -> None:
    """All is answered, so that neither needs a window."""
    start, end = (datetime.now(UTC) + timedelta(hours=hours) for hours in (1, 2))
    window = [f"window.start='{start:%H:%M}'", f"window.end='{end:%H:%M}'", "window.before=touch begun"]
    command = ["synthesize", str(answered.settings), "--into", "fallen", *chosen(*window)]
    line = "        emit_event(EVENT,"
    answered.edit("flows/served_synthesize.py", line, "        __import__('os')._exit(9)\n" + line)
    assert answered.eyas(*command).returncode == 9
    landed = sorted(path.name for path in (answered.folder / "fallen").iterdir())
    assert len(landed) == 2
    answered.edit("flows/served_synthesize.py", "        __import__('os')._exit(9)\n", "")
    for new in (2, 0):
        done = answered.eyas(*command)
        assert done.returncode == 0 and f", {new} new files of them" in done.stdout, done.stderr[-3000:]
    with temporary_settings({PREFECT_API_URL: prefect_api}), get_client(sync_client=True) as api:
        (payload,) = wait_for(lambda: events(api, "fallen"), 60)
    assert sorted(payload["files"]) == landed and not (answered.folder / "begun").exists()
