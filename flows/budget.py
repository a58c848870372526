"""What a run may spend: its plan's estimate, by rates that this store has measured, against the limits of ``budget``."""

import logging
from collections.abc import Callable, Iterable

from errors import UserError
from running.tables import size
from running.walk import Step, Walk
from tasks.settings import Settings

log = logging.getLogger("eyas")
HOUR = 3600.0


class OverBudget(UserError):
    """A plan would pass the budget; a person may let it."""


def require_budget(settings: Settings, walk: Walk) -> None:
    """Refuse a plan that would pass the budget."""
    over = over_budget(settings, walk)
    if over:
        raise OverBudget(over)


def over_budget(settings: Settings, walk: Walk) -> str | None:
    """The sentence for a plan that would pass the budget, else None; what cannot be estimated is said and does not count.

    Nodes that may run count like those that will: the estimate is the most that the run can take.
    """
    steps = [step for step in walk.steps if step.status != "hit"]
    heavy = [step for step in steps if walk.stages[step.stage].device == "accelerator"]
    hours, limit = sum(map(_hours, heavy)), settings.budget.gpu_hours
    if limit is not None:
        unknown = dict.fromkeys(step.stage for step in heavy if step.estimate is None)
        if unknown:
            log.warning("budget.gpu_hours: no rate is known yet for %s, so that their hours do not count", _listed(unknown))
        if hours > limit:
            parts = _parts(heavy, _hours, lambda value: f"{value:,.3g}")
            return (
                f"this run would take up to {hours:,.3g} GPU hours ({parts}) and budget.gpu_hours is {limit:,g}: raise it, or "
                "give less to do"
            )
    added = sum(step.output_bytes for step in steps)
    if settings.budget.bytes is not None and added > settings.budget.bytes:
        return (
            f"this run would add up to {size(added)} of hidden states to the store and budget.bytes is "
            f"{size(settings.budget.bytes)}: raise it, or give less to do"
        )
    return None


def _hours(step: Step) -> float:
    return (step.estimate or 0.0) * step.devices / HOUR


def _parts(steps: Iterable[Step], value: Callable[[Step], float], told: Callable[[float], str]) -> str:
    sums: dict[str, float] = {}
    for step in steps:
        sums[step.stage] = sums.get(step.stage, 0.0) + value(step)
    return ", ".join(f"{_named(stage)} {told(total)}" for stage, total in sums.items() if total)


def _listed(stages: Iterable[str]) -> str:
    return " and ".join(map(_named, stages))


def _named(stage: str) -> str:
    return stage.replace("_", " ")
