"""A person's word where a run would pass its budget: the run pauses in Prefect until somebody resumes it."""

from prefect import runtime
from prefect.flow_runs import pause_flow_run
from prefect.input import RunInput
from pydantic import Field

from errors import UserError
from tasks.operation_settings import WindowSettings

WAITS = 7 * 24 * 3600  # seconds after which nobody is expected to answer any more
_ASKS = 2  # seconds between two looks for an answer


class Approval(RunInput):
    """What the form asks when a paused run is resumed."""

    approve: bool = Field(False, description="Let this run pass its budget")


def ask(sentence: str) -> None:
    """Pause until a person approves; ``UserError`` where nobody does, or where no deployment, and so no UI, started the run."""
    if not runtime.deployment.id:
        raise UserError(sentence)
    form = Approval.with_initial_data(description=sentence[:1].upper() + sentence[1:] + ".", approve=False)
    attempt = f"budget-{runtime.flow_run.run_count}"  # else a retry would read what the run before it was told
    given = pause_flow_run(wait_for_input=form, timeout=WAITS, poll_interval=_ASKS, key=attempt)
    if not given.approve:
        raise UserError(f"{sentence} (the run was resumed without approval)")


def approved(window: WindowSettings, over: str | None) -> WindowSettings:
    """Ask about a plan that is ``over`` the budget, if it is. The window is waited for then: a word outside of it would else
    be lost."""
    if over is None:
        return window
    ask(over)
    return window.model_copy(update={"wait": True})
