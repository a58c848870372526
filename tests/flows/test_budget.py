"""A plan that would pass the budget is not begun; in Prefect it waits for a person."""

import json
import logging
import os
import subprocess
import sys
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.budget import over_budget
from flows.planning import open_host, plan
from running.settings_file import load_settings
from running.walk import Walk
from tasks.settings import Settings
from tests.projects import Project, copy_checkout, make_project, ran, wait_for
from tests.recorded import record


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, cut_verifier: Path) -> Project:
    """A store in which 512 tokens of hidden states took a second; the states of the first of three shards are not made yet."""
    folder = tmp_path_factory.mktemp("budget")
    copy_checkout(folder / "checkout")
    project = make_project(folder / "project", folder / "checkout", cut_verifier, "http://127.0.0.1:1/api")
    project.edit("settings.yaml", "  - b.jsonl\n", "")
    record(project, shards=3)
    forget_states(project)
    return project


def forget_states(project: Project) -> None:
    """Remove the record of the hidden states of a source's first shard."""
    nodes = {json.loads(path.read_text())["node"]: path for path in project.records("hidden_states")}
    next(path for node, path in nodes.items() if node.startswith("shard 1/") and node.endswith(" of a")).unlink()


def planned(project: Project, **limits: float) -> tuple[Settings, Walk]:
    with chdir(project.folder):
        settings = load_settings(project.settings, [f"budget.{name}={value}" for name, value in limits.items()])
        return settings, plan(settings, open_host(settings), project.folder)


def over(project: Project, **limits: float) -> str | None:
    return over_budget(*planned(project, **limits))


def test_hours_are_estimated_by_the_rates_of_the_store(recorded: Project) -> None:
    assert over(recorded) is None and over(recorded, gpu_hours=4.1 / 3600) is None
    told = over(recorded, gpu_hours=3.9 / 3600)
    assert told and "up to 0.00111 GPU hours (hidden states 0.000278, training 0.000278, acceptance 0.000556)" in told
    assert "budget.gpu_hours is 0.00108333: raise it" in told


def test_bytes_are_those_of_the_states(recorded: Project) -> None:
    size = 512 * 4 * 576 * 4
    assert over(recorded, bytes=size) is None
    told = over(recorded, bytes=size - 1)
    assert told and "add up to 4.72 MB of hidden states" in told


def test_what_has_no_rate_is_said_and_stops_nothing(recorded: Project, caplog: pytest.LogCaptureFixture) -> None:
    (training,) = recorded.records("training")
    aside = training.rename(training.with_suffix(".aside"))
    try:
        with caplog.at_level(logging.WARNING, "eyas"):
            assert over(recorded, gpu_hours=1.0) is None
    finally:
        aside.rename(training)
    assert "no rate is known yet for training, so that their hours do not count" in caplog.text


def test_a_run_over_its_budget_ends_before_prefect_starts(recorded: Project) -> None:
    limit = ("--set", "budget.gpu_hours=1e-9")
    done = recorded.eyas("run", str(recorded.settings), *limit)
    assert done.returncode == 2 and "starting Prefect" not in done.stderr
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("eyas: this run would take up to"), done.stderr
    told = recorded.eyas("plan", str(recorded.settings), *limit)
    assert told.returncode == 2 and "1 run, 6 may run" in told.stdout and told.stderr == done.stderr


def test_no_key_knows_of_the_budget(recorded: Project) -> None:
    keys = [[step.key for step in planned(recorded, **limits)[1].steps] for limits in ({}, {"gpu_hours": 1.0, "bytes": 9})]
    assert keys[0] == keys[1] and sum(key is not None for key in keys[0]) > 5


def state_of(api: Any, run: Any) -> str:
    return str(api.read_flow_run(run.id).state.name)


def deployed_run(api: Any, project: Project) -> Any:
    """A run of the flow's deployment, as the form in the UI makes it."""
    flow = api.create_flow_from_name("train-draft")
    where = [{"prefect.deployments.steps.set_working_directory": {"directory": str(project.folder)}}]
    deployment = api.create_deployment(
        flow, f"over-{project.folder.parent.name}", entrypoint="flows/served.py:train_draft_flow", pull_steps=where
    )
    settings = load_settings(project.settings, ["budget.gpu_hours=1e-9"]).model_dump(mode="json", exclude_unset=True)
    return api.create_flow_run_from_deployment(deployment, parameters={"settings": settings})


def resume(api: Any, run: Any, **given: Any) -> None:
    """What the UI's button does with its form."""
    wait_for(lambda: state_of(api, run) == "Paused")
    wait_for(lambda: api.filter_flow_run_input(run.id, key_prefix="paused", limit=9, exclude_keys=set()))
    answer = api.resume_flow_run(run.id, run_input=given)
    assert answer.status.value == "ACCEPT", answer


def test_in_prefect_it_pauses_and_goes_on_when_a_person_approves(project: Project, prefect_api: str) -> None:
    forget_states(project)
    environment = {**project.environment, "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    command = [sys.executable, "-m", "prefect", "flow-run", "execute"]
    with temporary_settings({PREFECT_API_URL: prefect_api}), get_client(sync_client=True) as api:
        for approve, state in ((False, "Failed"), (True, "Completed")):
            before = len(project.records("hidden_states"))
            run = deployed_run(api, project)
            with open(project.folder / "executed.log", "wb") as log:
                executed = subprocess.Popen(
                    [*command, str(run.id)], cwd=os.sep, env=environment, stdout=log, stderr=subprocess.STDOUT
                )
            resume(api, run, approve=approve)
            executed.wait(240)
            assert state_of(api, run) == state, (project.folder / "executed.log").read_text()[-3000:]
            assert len(project.records("hidden_states")) == before + approve
    assert not ran(project.nodes("plan"))
