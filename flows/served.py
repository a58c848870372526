"""The pipeline as Prefect runs it: from the command line, a deployment or a schedule."""

import logging
from collections.abc import Collection
from dataclasses import asdict
from typing import Any

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.task_runners import ThreadPoolTaskRunner

from flows.approval import approved
from flows.begun import Begun, begin
from flows.budget import over_budget
from flows.outcome import Outcome
from flows.planning import plan
from flows.report import write_report
from flows.train_draft import DraftRun, train_draft
from flows.windowed import Opened, in_window
from running.waiting import MOST_AT_ONCE
from running.walk import Walk
from tasks.settings import Settings

log = logging.getLogger("eyas")


@flow(name="train-draft", task_runner=ThreadPoolTaskRunner(max_workers=MOST_AT_ONCE), persist_result=False)  # type: ignore[arg-type]
def train_draft_flow(settings: Settings) -> dict[str, Any]:
    """Train a draft for the verifier, judge it and export it; what is already made is not made again.

    Args:
        settings: Everything a run is told.
    """
    run = begin(settings)
    planned = say_plan(run, settings)
    window = approved(settings.window, over_budget(settings, planned))

    def work(opened: Opened) -> dict[str, Any]:
        with run.walking() as walk:
            with run.executor(walk, opened) as executor:
                made = train_draft(settings, executor, run.host.memo, run.host.forgotten.of)
            return publish(run, walk, made)

    ended: dict[str, Any] = in_window(window, planned, run.window_log, work)
    return ended


def say_plan(run: Begun, settings: Settings, left_out: Collection[str] = ()) -> Walk:
    """Walk the plan first: it refuses what cannot work before anything is submitted, and says what will run."""
    walk = plan(settings, run.host, run.snapshot, left_out)
    counts = {status: sum(step.status == status for step in walk.steps) for status in ("hit", "run", "may run")}
    log.info("plan: %d hit, %d run, %d may run", counts["hit"], counts["run"], counts["may run"])
    return walk


def publish(run: Begun, walk: Walk, made: DraftRun, outcome: Outcome | None = None) -> dict[str, Any]:
    """Write the report, which begins with a retraining's ``outcome``, show it in Prefect, and return the nodes and where things
    lie."""
    report, markdown = write_report(run.settings, run.host, walk.steps, made, run.folder, outcome)
    create_markdown_artifact(key="draft-report", markdown=markdown, description="Acceptance, data quality, what ran")
    assert made.export.outputs is not None
    checkpoint = run.host.store.folder(made.export.outputs["export"].digest)
    return {
        "nodes": [asdict(step) for step in walk.steps],
        "acceptance": {one.node.name: one.outputs["acceptance"].facts for one in made.judged if one.outputs},
        "engines": [one.outputs["engine_acceptance"].facts for one in made.engines if one.outputs],
        "report": str(report),
        "checkpoint": str(checkpoint),
    }
