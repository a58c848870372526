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
    """What a retraining would say that has nothing to do; None where it has, or would have to look. Nothing is run."""
    check(settings)
    if empty := nothing_landed(settings):
        return empty
    plan = PlanExecutor(host.walk())
    target = obtain_verifier(settings, plan, host.memo)
    last = last_retraining(host, scope(target))
    found = news(settings, host, target, last, plan, plan)
    if found.fresh or unfinished(Championship(host, target), last):
        return None
    return idle(last, list(found.refused.values()))


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


def unfinished(throne: Championship, last: Last | None) -> bool:
    """Whether the last retraining decided to promote and nobody did or declined: it was ended, or waits for a person."""
    alias = throne.alias()
    facts = last.decision.outputs["decision"].facts if last else {}
    stood = [move.digest for move in alias.history] if alias else []
    return bool(
        facts
        and facts["verdict"] == "promote"
        and facts["candidate"] not in stood
        and facts["champion"] == (alias.digest if alias else "")
        and not throne.declined(facts["candidate"])
    )
