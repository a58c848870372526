"""Retraining as Prefect runs it: by hand, on a schedule, on an event. A run's last state bears the name of its outcome."""

import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.states import Completed, State
from prefect.task_runners import ThreadPoolTaskRunner

from errors import UserError
from flows.approval import approved
from flows.asked import asked_before, settled
from flows.begun import Begun, begin
from flows.budget import OverBudget, require_budget
from flows.idle import nothing_new
from flows.outcome import Outcome
from flows.planning import open_host
from flows.report_decision import decision_report
from flows.retrain import retrain
from flows.served import publish, say_plan
from flows.windowed import Opened, in_window
from running.prefect_log import send_log_to_prefect
from running.waiting import MOST_AT_ONCE
from running.walk import Walk
from tasks.operation_settings import WindowSettings
from tasks.settings import Settings

log = logging.getLogger("eyas")
Ended = tuple[Outcome, dict[str, Any]] | State[Any]  # the outcome and what ran, or the state of a window that had closed


@flow(name="retrain", task_runner=ThreadPoolTaskRunner(max_workers=MOST_AT_ONCE), persist_result=False)  # type: ignore[arg-type]
def retrain_flow(settings: Settings, again: bool = False, landed: str = "") -> State[dict[str, Any]]:
    """Train on what is new, compare with the champion on the same samples, and promote, refuse or ask.

    Args:
        settings: Everything a retraining is told.
        again: Train and compare although nothing is new.
        landed: The path that an event tells of; it must be among the conversations.
    """
    send_log_to_prefect()
    if landed:
        _require_read(settings, Path(landed))
    host = open_host(settings)
    known = asked_before(settings, host) or (None if again else nothing_new(settings, host))
    ended = (known, dict[str, Any](nodes=[])) if known else _retrained(settings, again)
    if isinstance(ended, State):
        return ended
    outcome, result = ended
    if outcome.verdict == "waits":
        outcome = settled(settings, host, outcome)
        _show(decision_report(host.store, outcome))
    log.info("%s", outcome.sentence)
    told = {
        "verdict": outcome.verdict,
        "because": outcome.because,
        "left_out": outcome.left_out,
        "candidate": outcome.candidate,
    }
    return Completed(name=outcome.verdict.title().replace(" ", ""), message=outcome.sentence, data={**result, **told})


def _retrained(settings: Settings, again: bool) -> Ended:
    """How it ended and what ran; a state of its own where the window closed before.

    Only inside the window is it known what is to be done. Over the budget it leaves the window, so that nothing is held while
    a person is asked, and goes in again.
    """
    run = begin(settings)
    try:
        return _in_window(run, settings.window, again, require_budget)
    except OverBudget as over:
        sentence = str(over)
    return _in_window(run, approved(settings.window, sentence), again, lambda settings, walk: None)


def _in_window(run: Begun, window: WindowSettings, again: bool, check: Callable[[Settings, Walk], None]) -> Ended:
    """``check`` may refuse the plan before anything costly."""
    settings = run.settings

    def work(opened: Opened) -> tuple[Outcome, dict[str, Any]]:
        with run.walking() as walk:
            with run.executor(walk, opened) as executor:

                def before(warm: Settings, left_out: Collection[str]) -> None:
                    check(warm, say_plan(run, warm, left_out))

                outcome = retrain(settings, executor, run.host, again, run.snapshot, before)
            result = publish(run, walk, outcome.made, outcome) if outcome.made else {"nodes": []}
        text = decision_report(run.host.store, outcome)
        if outcome.made:
            (Path(result["report"]).parent / "decision.md").write_text(text)
        _show(text)
        return replace(outcome, made=None), result

    ended: Ended = in_window(window, None, run.window_log, work)
    return ended


def _show(text: str) -> None:
    """In Prefect."""
    create_markdown_artifact(key="promotion", markdown=text, description="Whether the draft became champion, and why")


def _require_read(settings: Settings, landed: Path) -> None:
    """Data that nobody reads must not pass unseen."""
    folders = [Path(given).resolve() for given in settings.data.conversations]
    if not any(landed.resolve().is_relative_to(folder) for folder in folders):
        raise UserError(f"data has landed in {landed}, which data.conversations does not name: add it to the settings")
