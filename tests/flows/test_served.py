"""What the UI asks of Prefect's API, with a real server and worker: a run started from a deployment, its report, a retry."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.projects import Project, wait_for
from tests.served import WHY, Served, break_export, mend_export, serving


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, checkout: Path, cut_verifier: Path, finished: tuple[Project, list[dict[str, Any]]]
) -> Iterator[Served]:
    """Deployments with the finished project's settings and what it had made."""
    folder = tmp_path_factory.mktemp("served") / "project"
    with serving(folder, checkout, cut_verifier, lambda name, settings: settings) as served:
        served.project.take_store_of(finished[0])
        yield served


def test_a_run_from_a_deployment_hits_and_reports(served: Served, finished: tuple[Project, list[dict[str, Any]]]) -> None:
    before = served.made()
    run = served.start("train-draft")
    told = served.wait_for_state(run, "COMPLETED", "FAILED", "CRASHED")
    assert told["type"] == "COMPLETED", told
    tasks = wait_for(lambda: (found := served.tasks(run)) and len(found) == len(finished[1]) and found, 60)
    assert {state for _, state in tasks} == {"Cached"}
    (report,) = served.ask(
        "artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run]}, "key": {"any_": ["draft-report"]}}}
    )
    assert "## Acceptance" in report["data"]
    assert served.made() == before


def test_a_failed_run_is_retried_with_the_code_as_it_is_now(served: Served) -> None:
    before = served.made()
    break_export(served.project)
    run = served.start("train-draft")
    told = served.wait_for_state(run, "COMPLETED", "FAILED", "CRASHED")
    assert told["type"] == "FAILED" and WHY in told["message"], told
    assert served.made() == before
    mend_export(served.project)
    served.retry(run)
    assert served.wait_for_state(run, "COMPLETED", "FAILED", "CRASHED")["type"] == "COMPLETED"
    assert served.made() == {**before, "export": before["export"] + 1}
