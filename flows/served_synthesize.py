"""Synthesis as Prefect runs it; when files have landed it says so by an event, which starts a retraining."""

import logging
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.events import emit_event
from prefect.task_runners import ThreadPoolTaskRunner

from flows.served import begun
from flows.synthesize import synthesize
from running.waiting import AT_ONCE
from tasks.settings import Settings

log = logging.getLogger("eyas")
EVENT = "synthetic-data.landed"


@flow(name="synthesize", task_runner=ThreadPoolTaskRunner(max_workers=AT_ONCE), persist_result=False)  # type: ignore[arg-type]
def synthesize_flow(settings: Settings, into: str = ".eyas/landed") -> dict[str, Any]:
    """Let the verifier answer the prompts and land the answers, as files of conversations, in the folder ``into``."""
    with begun(settings) as run, run.executor() as executor:
        landed = synthesize(settings, executor, run.host.memo, run.host.store, Path(into))
    told = {"path": str(landed.folder), "count": landed.count, "files": landed.files}
    if landed.files:
        emit_event(EVENT, resource={"prefect.resource.id": f"eyas.data.{landed.folder.name}"}, payload=told)
    log.info("%d conversations in %s, %d new files", landed.count, landed.folder, len(landed.files))
    return told
