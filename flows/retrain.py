"""Retraining: new data -> the pipeline -> compared with the champion on the same samples -> promoted, refused or asked about.

Two at once both compare with the champion that they found; the alias moves for the first, and the other says why not.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from artifacts.manifest import Ref
from artifacts.stage import Input, Made
from errors import UserError
from flows.champions import Championship, as_made
from flows.idle import check, idle, nothing_landed, unfinished
from flows.news import last_retraining, news
from flows.outcome import Outcome
from flows.report_data import facts_ref
from flows.train_draft import DraftRun, obtain_verifier, train_draft
from running.host import Host
from running.plan import PlanExecutor
from running.walk import Executor
from tasks import acceptance, corpus, legacy, promotion, verifier
from tasks.champions import CHAMPION
from tasks.promotion import Judged
from tasks.settings import Settings


def retrain(
    settings: Settings,
    run: Executor,
    host: Host,
    again: bool = False,
    code: Path | None = None,
    before: Callable[[Settings, Collection[str]], None] = lambda settings, left_out: None,
) -> Outcome:
    """Train on what is there if some of it is new (or ``again``), compare and promote; the champion stays in every doubt.

    ``code`` is the snapshot that ``run`` works with, else the checkout; ``before`` is called before anything costly, with the
    settings that the draft is trained by and the digests of the files that are left out.
    """
    check(settings)
    if empty := nothing_landed(settings):
        return empty
    plan = PlanExecutor(host.walk(code))
    target = obtain_verifier(settings, plan, host.memo)
    if target.facts is None:
        target = obtain_verifier(settings, run, host.memo)
    throne = Championship(host, target)
    last = last_retraining(host, throne.scope)
    found = news(settings, host, target, last, plan, run)
    left_out = list(found.refused.values())
    if not found.fresh and not again:
        waiting = unfinished(throne, last, left_out)
        return settle(settings, throne, waiting) if waiting else idle(last, left_out)
    alias = throne.alias()
    champion = alias.digest if alias else None
    warm = _warm(settings, champion)
    before(warm, found.refused)
    made = train_draft(warm, run, host.memo, host.forgotten.of, found.refused)
    candidate = facts_ref(made.training, "draft").digest
    if candidate == champion:
        return Outcome("nothing new", ["it is the champion already"], candidate, champion, None, left_out, made)
    decision = compare(settings, run, host, throne, made, champion)
    outcome = Outcome("refused", decision.facts["reasons"], candidate, champion, decision, left_out, made)
    return settle(settings, throne, outcome) if decision.facts["verdict"] == "promote" else outcome


def _warm(settings: Settings, champion: str | None) -> Settings:
    """With ``training.parent: champion``, the champion that the candidate is compared with; before the first one no parent."""
    if settings.training.parent != CHAMPION:
        return settings
    return settings.model_copy(update={"training": settings.training.model_copy(update={"parent": champion})})


def compare(settings: Settings, run: Executor, host: Host, throne: Championship, made: DraftRun, champion: str | None) -> Ref:
    """Judge the champion on what the candidate was judged on, and decide."""
    shards = [*corpus.shards(made.corpora), *legacy.shards(made.legacy)]
    masks = [shard.masks for shard in shards if isinstance(shard.masks, Input)]
    judged = None
    if champion is not None:
        known = as_made(host, champion)
        _check_layers(settings, made, known)
        nodes = acceptance.nodes(
            settings, shards, made.states, made.checked, known, made.verifier, verifier.decodes(made.verifier)
        )
        judged = Judged(champion, run.map(replace(node, name=f"{node.name}, champion") for node in nodes))
    candidate = Judged(facts_ref(made.training, "draft").digest, made.judged)
    return facts_ref(run.run(promotion.node(settings, throne.scope, candidate, judged, masks)), "decision")


def _check_layers(settings: Settings, made: DraftRun, champion: Made) -> None:
    mine, theirs = (facts_ref(one, "draft").facts["layer_ids"] for one in (made.training, champion))
    if mine != theirs:
        raise UserError(
            f"the champion drafts from the layers {theirs} and hidden_states.layer_ids are {mine}, so that the two cannot be "
            "compared on the same states: set hidden_states.layer_ids as they were, or `eyas champion --to` the new draft"
        )


def settle(settings: Settings, throne: Championship, outcome: Outcome) -> Outcome:
    """Promote a draft that was decided for, unless a person is to be asked: it then waits."""
    assert outcome.decision is not None
    return replace(outcome, verdict="waits") if asks(settings, outcome.decision) else promote(throne, outcome)


def asks(settings: Settings, decision: Ref) -> bool:
    """Whether a person approves: as ``promotion.ask`` says, which by default is where the verifier itself has not decoded."""
    ask = settings.promotion.ask
    decoded = "real decoding" in decision.facts.get("methods", [])
    return ask == "always" or (ask == "without decoding" and not decoded)


def promote(throne: Championship, outcome: Outcome, by: str = "") -> Outcome:
    """Move the alias if it still stands where the candidate was compared; ``by`` names who approved."""
    assert outcome.candidate is not None and outcome.decision is not None
    because = f"{'; '.join(outcome.because)} (decision {outcome.decision.digest[:12]}{by})"
    refused = throne.move(outcome.candidate, outcome.champion, because)
    return replace(outcome, verdict="refused", because=[refused]) if refused else replace(outcome, verdict="promoted")
