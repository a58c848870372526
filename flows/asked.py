"""A person's word on a draft that would become champion: the run is suspended until somebody resumes it."""

from dataclasses import replace

from prefect import runtime
from prefect.context import FlowRunContext
from prefect.flow_runs import suspend_flow_run
from prefect.input import RunInput
from pydantic import Field

from flows.approval import WAITS
from flows.champions import Championship
from flows.idle import undecided
from flows.outcome import Outcome
from flows.retrain import promote, settle
from running.host import Host
from tasks.settings import Settings


class Approval(RunInput):
    """What the form asks when a suspended run is resumed."""

    promote: bool = Field(False, description="Make this draft the champion of its verifier")
    because: str = Field("", description="Why; kept in the champion's history")


def settled(settings: Settings, host: Host, outcome: Outcome) -> Outcome:
    """How it ends for a draft that waits: promoted where nobody is to be asked, else by a person's word.

    Only a deployment's run has a form for it; on the command line the draft goes on waiting.
    """
    throne = Championship.of(settings, host)
    outcome = settle(settings, throne, outcome)
    return _by_a_person(throne, outcome) if outcome.verdict == "waits" and runtime.deployment.id else outcome


def asked_before(settings: Settings, host: Host) -> Outcome | None:
    """The outcome that this very run was suspended with, if nothing was decided since.

    The answer is about that draft, whatever has landed meanwhile, and takes effect outside of any window.
    """
    context = FlowRunContext.get()
    asked = context.flow_run.empirical_policy.pause_keys if context and context.flow_run else None
    waiting = undecided(settings, host) if asked else None
    return waiting if waiting and asked and _question(waiting) in asked else None


def _question(outcome: Outcome) -> str:
    """Bound to the candidate, so that an answer cannot promote a draft that it was not about."""
    return f"promote-{outcome.candidate}"


def _by_a_person(throne: Championship, outcome: Outcome) -> Outcome:
    """Leave the worker until a person resumes the run: it then starts anew, comes here at once, and this gives the answer."""
    assert outcome.candidate is not None
    form = Approval.with_initial_data(description=outcome.sentence)
    given = suspend_flow_run(wait_for_input=form, timeout=WAITS, key=_question(outcome))
    because = given.because or "no reason given"
    if given.promote:
        return promote(throne, outcome, f", approved: {because}")
    throne.decline(outcome.candidate, because)
    return replace(outcome, verdict="refused", because=[f"a person kept the champion: {because}"])
