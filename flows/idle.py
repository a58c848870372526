"""Whether a retraining has anything to do; asked before anything is started, and answered in seconds."""

from pathlib import Path

from errors import UserError
from flows.champions import Championship
from flows.news import Last, last_retraining, news
from flows.outcome import Outcome
from flows.train_draft import obtain_verifier
from running.host import Host
from running.plan import PlanExecutor
from tasks import verifier
from tasks.champions import scope
from tasks.settings import Settings


def nothing_new(settings: Settings, host: Host) -> Outcome | None:
    """What a retraining would say that has nothing to train, ``waits`` where the last one's draft still does; None where it
    has, or would have to look. Nothing is run."""
    check(settings)
    if empty := nothing_landed(settings):
        return empty
    plan = PlanExecutor(host.walk())
    target = obtain_verifier(settings, plan, host.memo)
    last = last_retraining(host, scope(target))
    found = news(settings, host, target, last, plan, plan)
    if found.fresh:
        return None
    left_out = list(found.refused.values())
    return unfinished(Championship(host, target), last, left_out) or idle(last, left_out)


def undecided(settings: Settings, host: Host) -> Outcome | None:
    """The last retraining's outcome, whatever has landed since, if its draft still waits."""
    throne = Championship.of(settings, host)
    return unfinished(throne, last_retraining(host, scope(throne.target)), [])


def check(settings: Settings) -> None:
    """Refuse settings without a verifier, and a smoke run: what it would take as read the next retraining would not read."""
    verifier.check(settings.verifier)
    if settings.limit is not None:
        raise UserError("limit makes a smoke run, which can promote nothing: leave it empty, or use `eyas run`")


def nothing_landed(settings: Settings) -> Outcome | None:
    """The outcome where the only sources are folders in which nothing has landed yet, so that a schedule may be set before."""
    data = settings.data
    folders = [Path(given) for given in data.conversations]
    if data.prompts or data.legacy_states or not folders or any(_holds_files(folder) for folder in folders):
        return None
    return Outcome("nothing new", [f"no file has landed yet in {', '.join(data.conversations)}"])


def _holds_files(path: Path) -> bool:
    """Whether a path is a file, or a folder with files in it; a file that is missing is told by the corpus."""
    if path.is_dir():
        return any(file.is_file() and not file.name.startswith(".") for file in path.rglob("*"))
    return path.exists() or bool(path.suffix)


def idle(last: Last | None, left_out: list[str]) -> Outcome:
    """The outcome where nothing that can be used is new."""
    if left_out:
        return Outcome("refused", left_out, left_out=left_out)
    assert last is not None  # without one everything is new
    return Outcome("nothing new", [f"every source was in the retraining of {last.when} ({last.told})"])


def unfinished(throne: Championship, last: Last | None, left_out: list[str]) -> Outcome | None:
    """The outcome of a retraining that decided to promote and nobody did or declined: it was ended, or waits for a person."""
    if last is None:
        return None
    decision = last.decision.outputs["decision"]
    candidate, champion = decision.facts["candidate"], decision.facts["champion"]
    alias = throne.alias()
    if decision.facts["verdict"] != "promote" or champion != (alias.digest if alias else ""):
        return None
    if throne.declined(candidate) or (alias and candidate in (move.digest for move in alias.history)):
        return None
    return Outcome("waits", decision.facts["reasons"], candidate, champion or None, decision, left_out)
