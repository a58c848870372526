"""The report's first sentence: whether to serve the draft, and by which rule."""

from collections.abc import Mapping
from typing import Any

from flows.report_cases import LEAST
from flows.report_champion import Champion
from flows.report_data import facts_ref
from flows.train_draft import DraftRun
from tasks.settings import Settings

RULE = (
    "The rule: serve a draft when, by real decoding, the whole 95% interval of its acceptance length lies above an untrained "
    "draft's, or that of the difference to the champion's on the same answers above nothing, by more than `promotion.margin`. "
    "Replay alone asks a person; a smoke run, or too few answers (`promotion.min_samples`), decides nothing. Only "
    "`eyas retrain` compares slices and every method with the champion's."
)


def verdict(settings: Settings, made: DraftRun, best: Mapping[str, Champion | None]) -> str:
    """One sentence, the decision first, by the first acceptance: real decoding where there is one. ``best`` is the champion
    beside each."""
    if not made.judged:
        return (
            "**Not decided: neither real decoding nor replay has judged this draft**; hold conversations out "
            "(`corpus.held_out`) to compare it."
        )
    first = made.judged[0]
    return judged(settings, facts_ref(first, "acceptance").facts, best[first.node.name])


def judged(settings: Settings, facts: dict[str, Any], champion: Champion | None) -> str:
    """The sentence about a draft of which an acceptance gave these facts."""
    least, margin = max(LEAST, settings.promotion.min_samples), settings.promotion.margin
    figure = f"{facts['length']:.2f} tokens a verifier step (95%: {facts['low']:.2f} to {facts['high']:.2f})"
    untrained = f"{facts['untrained_length']:.2f} untrained"
    if settings.limit is not None:
        return f"**Do not serve this draft: it comes from a smoke run** (`limit` is {settings.limit})."
    if facts["prompts"] < least:
        return f"**Not decided: only {facts['prompts']} answers judged this draft**; give {least} or more. It has {figure}."
    if facts["low"] - facts["untrained_length"] <= (0.0 if champion else margin):
        return f"**Do not serve this draft: it is not shown to be better than an untrained one**: {figure}, {untrained}."
    if champion and champion.itself:
        return f"**Go on serving this draft: it is the champion**, with {figure}, {untrained}."
    if champion and champion.facts is None:
        return f"**Not decided: other answers judged the champion**, so retrain to compare them; this draft has {figure}."
    if champion and (champion.longer is None or champion.longer[0] <= margin):
        return f"**Do not serve this draft: it is not shown to be better than the champion**: {figure}, {_against(champion)}."
    against = f"{untrained}, {_against(champion)}" if champion else untrained
    if facts["method"] == "replay":
        return f"**Not decided: try this draft in your engine first**; by replay alone it has {figure}, {against}."
    alone = "; slices are not compared with the champion's here, `eyas retrain` does it" if champion else ""
    return f"**Serve this draft**: {figure}, {against}{alone}."


def _against(champion: Champion) -> str:
    assert champion.facts is not None
    its = f"{champion.facts['length']:.2f} the champion"
    return f"{its} (longer by {champion.longer[0]:+.2f} to {champion.longer[1]:+.2f})" if champion.longer else its
