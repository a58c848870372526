"""The flows as Prefect runs them: from the command line, a deployment or a schedule."""

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.task_runners import ThreadPoolTaskRunner

from flows.planning import open_host, plan
from flows.report import write_report
from flows.train_draft import DraftRun, train_draft
from running.devices import DevicePool
from running.execution import Execution
from running.host import Host
from running.metric_log import METRICS, MetricLog, check_loggers
from running.prefect_executor import PrefectExecutor
from running.prefect_log import send_log_to_prefect
from running.snapshot import new_run_folder, take_snapshot
from running.waiting import AT_ONCE
from running.walk import Walk
from tasks import training
from tasks.settings import Settings

log = logging.getLogger("eyas")


@flow(name="train-draft", task_runner=ThreadPoolTaskRunner(max_workers=AT_ONCE), persist_result=False)  # type: ignore[arg-type]
def train_draft_flow(settings: Settings) -> dict[str, Any]:
    """Train a draft for the verifier, judge it and export it; what is already made is not made again."""
    send_log_to_prefect()
    host = open_host(settings)
    host.store.sweep()
    run_folder = new_run_folder(host.state)
    snapshot = take_snapshot(run_folder)
    say_plan(settings, host, snapshot)
    pool = DevicePool(host.state, settings.running.devices, settings.running.cpu_slots, settings.running.share_devices)
    training.check(settings, on_gpu=bool(pool.gpus))
    pool.check_count("running.training_devices", settings.running.training_devices)
    check_loggers([*settings.running.loggers])
    walk = host.walk(snapshot)
    with host.noted_run(run_folder.name, settings.name, walk):
        metrics = MetricLog([*settings.running.loggers], run_folder / METRICS, settings.name)
        with host.store.workspace() as workspace, walk.giving(), metrics:
            execution = Execution(walk, host.state, run_folder, pool, workspace)
            execution.on_metrics = metrics.send
            try:
                made = train_draft(settings, PrefectExecutor(walk, execution, host.state), host.memo, host.forgotten.of)
            except BaseException:
                execution.children.stop()  # Prefect waits for its threads, and they for their children
                raise
        return publish(settings, host, walk, made, run_folder)


def say_plan(settings: Settings, host: Host, snapshot: Path) -> None:
    """Walk the plan first: it refuses what cannot work before anything is submitted, and says what will run."""
    steps = plan(settings, host, snapshot).steps
    counts = {status: sum(step.status == status for step in steps) for status in ("hit", "run", "may run")}
    log.info("plan: %d hit, %d run, %d may run", counts["hit"], counts["run"], counts["may run"])


def publish(settings: Settings, host: Host, walk: Walk, made: DraftRun, run_folder: Path) -> dict[str, Any]:
    """Write the report, show it in Prefect, and return the nodes and where things lie."""
    report, markdown = write_report(settings, host.store, walk.steps, made, run_folder)
    create_markdown_artifact(key="draft-report", markdown=markdown, description="Acceptance, data quality, what ran")
    assert made.export.outputs is not None
    checkpoint = host.store.folder(made.export.outputs["export"].digest)
    return {
        "nodes": [asdict(step) for step in walk.steps],
        "acceptance": {one.node.name: one.outputs["acceptance"].facts for one in made.judged if one.outputs},
        "report": str(report),
        "checkpoint": str(checkpoint),
    }
