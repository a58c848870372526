"""Retraining as Prefect runs it: by hand, on a schedule, on an event. A run's last state bears the name of its outcome."""

import logging
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from prefect import flow, runtime
from prefect.artifacts import create_markdown_artifact
from prefect.flow_runs import suspend_flow_run
from prefect.input import RunInput
from prefect.states import Completed, State
from prefect.task_runners import ThreadPoolTaskRunner
from pydantic import Field

from errors import UserError
from flows.approval import WAITS
from flows.begun import begin
from flows.champions import Championship
from flows.idle import nothing_new
from flows.outcome import Outcome
from flows.planning import open_host
from flows.report_decision import decision_report
from flows.retrain import promote, retrain
from flows.served import publish, say_plan
from flows.windowed import Opened, in_window
from running.host import Host
from running.prefect_log import send_log_to_prefect
from running.waiting import MOST_AT_ONCE
from tasks.settings import Settings

log = logging.getLogger("eyas")


class Approval(RunInput):
    """What the form asks when a suspended run is resumed."""

    promote: bool = Field(False, description="Make this draft the champion of its verifier")
    because: str = Field("", description="Why; kept in the champion's history")


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
    idle = None if again else nothing_new(settings, host)
    ended = (idle, dict[str, Any](nodes=[])) if idle else _retrained(settings, again)
    if isinstance(ended, State):
        return ended
    outcome, result = ended
    if outcome.verdict == "waits" and runtime.deployment.id:
        outcome = _approved(settings, host, outcome)
    log.info("%s", outcome.sentence)
    told = {
        "verdict": outcome.verdict,
        "because": outcome.because,
        "left_out": outcome.left_out,
        "candidate": outcome.candidate,
    }
    return Completed(name=outcome.verdict.title().replace(" ", ""), message=outcome.sentence, data={**result, **told})


def _retrained(settings: Settings, again: bool) -> tuple[Outcome, dict[str, Any]] | State[Any]:
    """How it ended and what ran; a state of its own where the window closed before."""
    run = begin(settings)

    def work(opened: Opened) -> tuple[Outcome, dict[str, Any]]:
        with run.walking() as walk:
            with run.executor(walk, opened) as executor:

                def before(warm: Settings, left_out: Collection[str]) -> None:
                    say_plan(run, warm, left_out)

                outcome = retrain(settings, executor, run.host, again, run.snapshot, before)
            result = publish(run, walk, outcome.made) if outcome.made else {"nodes": []}
        text = decision_report(run.host.store, outcome)
        if outcome.made:
            (Path(result["report"]).parent / "decision.md").write_text(text)
        create_markdown_artifact(key="promotion", markdown=text, description="Whether the draft became champion, and why")
        return replace(outcome, made=None), result

    ended: tuple[Outcome, dict[str, Any]] | State[Any] = in_window(settings.window, None, run.window_log, work)
    return ended


def _require_read(settings: Settings, landed: Path) -> None:
    """Data that nobody reads must not pass unseen."""
    folders = [Path(given).resolve() for given in settings.data.conversations]
    if not any(landed.resolve().is_relative_to(folder) for folder in folders):
        raise UserError(f"data has landed in {landed}, which data.conversations does not name: add it to the settings")


def _approved(settings: Settings, host: Host, outcome: Outcome) -> Outcome:
    """Leave the worker until a person resumes the run: it then starts anew, everything hits, and this gives the answer.

    The question is bound to the candidate, so that an answer cannot promote a draft that it was not about.
    """
    assert outcome.candidate is not None
    form = Approval.with_initial_data(description=outcome.sentence)
    given = suspend_flow_run(wait_for_input=form, timeout=WAITS, key=f"promote-{outcome.candidate}")
    throne, because = Championship.of(settings, host), given.because or "no reason given"
    if given.promote:
        return promote(throne, outcome, f", approved: {because}")
    throne.decline(outcome.candidate, because)
    return replace(outcome, verdict="refused", because=[f"a person kept the champion: {because}"])
