"""A plan that would pass the budget is not begun; in Prefect it waits for a person."""

import json
import logging
from contextlib import chdir
from pathlib import Path

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows import approval
from flows.budget import over_budget
from flows.planning import open_host, plan
from running.settings_file import load_settings
from running.walk import Walk
from tasks.operation_settings import WindowSettings
from tasks.settings import Settings
from tests.deployed import deployed_run, execute, resume, said, state_of
from tests.projects import Project, copy_checkout, make_project, ran
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


def test_in_prefect_it_pauses_and_goes_on_when_a_person_approves(project: Project, prefect_api: str) -> None:
    forget_states(project)
    settings = load_settings(project.settings, ["budget.gpu_hours=1e-9"])
    with temporary_settings({PREFECT_API_URL: prefect_api}), get_client(sync_client=True) as api:
        for approve, state in ((False, "Failed"), (True, "Completed")):
            before = len(project.records("hidden_states"))
            run = deployed_run(api, "train-draft", "flows/served.py:train_draft_flow", project.folder, settings)
            executed = execute(project, run)
            resume(api, run, "Paused", approve=approve)
            executed.wait(240)
            assert state_of(api, run).name == state, said(project)
            assert len(project.records("hidden_states")) == before + approve
    assert not ran(project.nodes("plan"))


def test_an_approved_run_waits_for_its_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """A word that comes outside of it is not lost."""
    asked: list[str] = []
    monkeypatch.setattr(approval, "ask", asked.append)
    window = WindowSettings(start="22:00", end="06:00")
    assert approval.approved(window, None) == window and not asked
    assert approval.approved(window, "too much").wait and asked == ["too much"]
