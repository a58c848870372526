"""Synthesis as Prefect runs it; when files have landed it says so by an event, which starts a retraining."""

import logging
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.events import emit_event
from prefect.states import State
from prefect.task_runners import ThreadPoolTaskRunner

from flows.approval import approved
from flows.begun import begin
from flows.budget import over_budget
from flows.synthesize import Landed, note_told, plan_answers, synthesize
from flows.windowed import Opened, in_window
from running.waiting import MOST_AT_ONCE
from tasks.settings import Settings

log = logging.getLogger("eyas")
EVENT = "synthetic-data.landed"


@flow(name="synthesize", task_runner=ThreadPoolTaskRunner(max_workers=MOST_AT_ONCE), persist_result=False)  # type: ignore[arg-type]
def synthesize_flow(settings: Settings, into: str = ".eyas/landed") -> dict[str, Any] | State[Any]:
    """Let the verifier answer the prompts and land the answers as files of conversations.

    Args:
        settings: Everything a synthesis is told.
        into: Folder in which the answers land; a retraining reads it where its data.conversations names it.
    """
    run = begin(settings)
    planned = plan_answers(settings, run.host, run.snapshot)
    window = approved(settings.window, over_budget(settings, planned))

    def work(opened: Opened) -> Landed:
        with run.walking() as walk, run.executor(walk, opened) as executor:
            return synthesize(settings, executor, run.host, Path(into))

    landed: Landed | State[Any] = in_window(window, planned, run.window_log, work)
    if isinstance(landed, State):
        return landed
    told = {"path": str(landed.folder), "count": landed.count, "files": landed.files}
    if landed.files:
        emit_event(EVENT, resource={"prefect.resource.id": f"eyas.data.{landed.folder.name}"}, payload=told)
        note_told(run.host, landed)
    log.info("%d conversations in %s, %d new files", landed.count, landed.folder, len(landed.files))
    return told
