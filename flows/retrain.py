"""Retraining: new data -> the pipeline -> compared with the champion on the same samples -> promoted, refused or asked about.

Two at once both compare with the champion that they found; the alias moves for the first, and the other says why not.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from artifacts.manifest import Ref
from artifacts.stage import Input, Made
from errors import UserError
from flows.champions import Championship, as_made
from flows.news import Last, last_retraining, news
from flows.report_data import facts_ref
from flows.train_draft import DraftRun, obtain_verifier, train_draft
from running.host import Host
from running.plan import PlanExecutor
from running.walk import Executor
from tasks import acceptance, corpus, legacy, promotion
from tasks.champions import scope
from tasks.settings import Settings


@dataclass(frozen=True)
class Outcome:
    """How a retraining ended; ``because`` gives its reasons in sentences.

    ``waits``: a person is to approve ``candidate`` in the place of ``champion``. ``left_out`` tells of files that were passed
    over.
    """

    verdict: Literal["promoted", "refused", "waits", "nothing new"]
    because: list[str]
    candidate: str | None = None
    champion: str | None = None
    decision: Ref | None = None
    left_out: list[str] = field(default_factory=list)
    made: DraftRun | None = None

    @property
    def sentence(self) -> str:
        """The outcome in one line."""
        named = f" {self.candidate[:12]}" if self.candidate else ""
        return f"{self.verdict}{named}: {'; '.join(self.because)}"


def retrain(
    settings: Settings,
    run: Executor,
    host: Host,
    again: bool = False,
    code: Path | None = None,
    before: Callable[[Collection[str]], None] = lambda left_out: None,
) -> Outcome:
    """Train on what is there if some of it is new (or ``again``), compare and promote; the champion stays in every doubt.

    ``code`` is the snapshot that ``run`` works with, else the checkout; ``before`` is called before anything costly, with the
    digests of the files that are left out.
    """
    check(settings)
    plan = PlanExecutor(host.walk(code))
    target = obtain_verifier(settings, plan, host.memo)
    if target.facts is None:
        target = obtain_verifier(settings, run, host.memo)
    throne = Championship(host, target)
    last = last_retraining(host, throne.scope)
    found = news(settings, host, target, last, plan, run)
    left_out = list(found.refused.values())
    if not found.fresh and not again and not _unfinished(throne, last):
        return _idle(last, left_out)
    alias = throne.alias()
    champion = alias.digest if alias else None
    before(found.refused)
    made = train_draft(settings, run, host.memo, host.forgotten.of, found.refused)
    candidate = facts_ref(made.training, "draft").digest
    if candidate == champion:
        return Outcome("nothing new", ["it is the champion already"], candidate, champion, None, left_out, made)
    decision = compare(settings, run, host, throne, made, champion)
    outcome = Outcome("refused", decision.facts["reasons"], candidate, champion, decision, left_out, made)
    if decision.facts["verdict"] != "promote":
        return outcome
    if asks(settings, made):
        return replace(outcome, verdict="waits")
    return promote(throne, outcome)


def nothing_new(settings: Settings, host: Host) -> Outcome | None:
    """What a retraining would say that has nothing to do; None where it has, or would have to look. Nothing is run."""
    check(settings)
    plan = PlanExecutor(host.walk())
    target = obtain_verifier(settings, plan, host.memo)
    last = last_retraining(host, scope(target))
    found = news(settings, host, target, last, plan, plan)
    if found.fresh or _unfinished(Championship(host, target), last):
        return None
    return _idle(last, list(found.refused.values()))


def check(settings: Settings) -> None:
    """Refuse a smoke run: what it would take as read the next retraining would not read."""
    if settings.limit is not None:
        raise UserError("limit makes a smoke run, which can promote nothing: leave it empty, or use `eyas run`")


def _idle(last: Last | None, left_out: list[str]) -> Outcome:
    if left_out:
        return Outcome("refused", left_out, left_out=left_out)
    assert last is not None  # without one everything is new
    return Outcome("nothing new", [f"every source was in the retraining of {last.when} ({last.told})"])


def _unfinished(throne: Championship, last: Last | None) -> bool:
    """Whether the last retraining was ended between its decision and the promotion: nobody has moved the alias since."""
    alias = throne.alias()
    facts = last.decision.outputs["decision"].facts if last else {}
    stood = [move.digest for move in alias.history] if alias else []
    return bool(
        facts
        and facts["verdict"] == "promote"
        and facts["candidate"] not in stood
        and facts["champion"] == (alias.digest if alias else "")
    )


def compare(settings: Settings, run: Executor, host: Host, throne: Championship, made: DraftRun, champion: str | None) -> Ref:
    """Judge the champion on what the candidate was judged on, and decide."""
    shards = [*corpus.shards(made.corpora), *legacy.shards(made.legacy)]
    masks = [shard.masks for shard in shards if isinstance(shard.masks, Input)]
    judged: list[Made] = []
    if champion is not None:
        known = as_made(host, champion)
        _check_layers(settings, made, known)
        nodes = acceptance.nodes(settings, shards, made.states, made.checked, known, made.verifier)
        judged = run.map(replace(node, name=f"{node.name}, champion") for node in nodes)
    return facts_ref(run.run(promotion.node(settings, throne.scope, made.judged, judged, masks)), "decision")


def _check_layers(settings: Settings, made: DraftRun, champion: Made) -> None:
    mine, theirs = (facts_ref(one, "draft").facts["layer_ids"] for one in (made.training, champion))
    if mine != theirs:
        raise UserError(
            f"the champion drafts from the layers {theirs} and hidden_states.layer_ids are {mine}, so that the two cannot be "
            "compared on the same states: set hidden_states.layer_ids as they were, or `eyas champion --set` the new draft"
        )


def asks(settings: Settings, made: DraftRun) -> bool:
    """Whether a person approves: as ``promotion.ask`` says, which by default is where the verifier itself has not decoded."""
    ask = settings.promotion.ask
    decoded = any(facts_ref(one, "acceptance").facts["method"] != "replay" for one in made.judged)
    return ask == "always" or (ask == "without decoding" and not decoded)


def promote(throne: Championship, outcome: Outcome, by: str = "") -> Outcome:
    """Move the alias if it still stands where the candidate was compared; ``by`` names who approved."""
    assert outcome.candidate is not None and outcome.decision is not None
    because = f"{'; '.join(outcome.because)} (decision {outcome.decision.digest[:12]}{by})"
    refused = throne.move(outcome.candidate, outcome.champion, because)
    return replace(outcome, verdict="refused", because=[refused]) if refused else replace(outcome, verdict="promoted")
