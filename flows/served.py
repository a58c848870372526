"""The flows as Prefect runs them: from the command line, a deployment or a schedule."""

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
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
    with begun(settings) as run:
        say_plan(settings, run.host, run.walk.code)
        with run.executor() as executor:
            made = train_draft(settings, executor, run.host.memo, run.host.forgotten.of)
        return publish(settings, run.host, run.walk, made, run.folder)


@dataclass(frozen=True)
class Begun:
    """A run that has begun: its host, the devices it may lease, its walk, and its folder with the code snapshot."""

    host: Host
    pool: DevicePool
    walk: Walk
    folder: Path

    @contextmanager
    def executor(self) -> Iterator[PrefectExecutor]:
        """What runs nodes as Prefect tasks; its children end with the block, and what was made is in the mirror then."""
        with self.host.store.workspace() as workspace, self.walk.giving():
            execution = Execution(self.walk, self.host.state, self.folder, self.pool, workspace)
            try:
                yield PrefectExecutor(self.walk, execution, self.host.state)
            except BaseException:
                execution.children.stop()  # Prefect waits for its threads, and they for their children
                raise


@contextmanager
def begun(settings: Settings) -> Iterator[Begun]:
    """Open the host, take the snapshot that the run works with, and keep the run's manifest to the end of the block."""
    send_log_to_prefect()
    host = open_host(settings)
    host.store.sweep()
    folder = new_run_folder(host.state)
    snapshot = take_snapshot(folder)
    pool = DevicePool(host.state, settings.running.devices, settings.running.cpu_slots, settings.running.share_devices)
    training.check(settings, on_gpu=bool(pool.gpus))
    walk = host.walk(snapshot)
    with host.noted_run(folder.name, settings.name, walk):
        yield Begun(host, pool, walk, folder)


def say_plan(settings: Settings, host: Host, snapshot: Path, left_out: Collection[str] = ()) -> None:
    """Walk the plan first: it refuses what cannot work before anything is submitted, and says what will run."""
    steps = plan(settings, host, snapshot, left_out).steps
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
