"""The report's first sentence: whether to serve the draft, and by which rule."""

from typing import Any

from flows.report_cases import LEAST
from flows.report_champion import Champion
from tasks.settings import Settings

RULE = (
    "The rule: serve a draft when, by real decoding, the whole 95% interval of its acceptance length lies above an untrained "
    "draft's and it is longer than the champion's on the same answers. Replay alone asks a person; a smoke run, or fewer than "
    f"{LEAST} answers, decides nothing."
)


def verdict(settings: Settings, facts: dict[str, Any], champion: Champion | None) -> str:
    """One sentence, the decision first; ``facts`` are those of the first acceptance (real decoding where there is one)."""
    figure = f"{facts['length']:.2f} tokens a verifier step (95%: {facts['low']:.2f} to {facts['high']:.2f})"
    untrained = f"{facts['untrained_length']:.2f} untrained"
    if settings.limit is not None:
        return f"**Do not serve this draft: it comes from a smoke run** (`limit` is {settings.limit})."
    if facts["prompts"] < LEAST:
        return f"**Not decided: only {facts['prompts']} answers judged this draft**; give {LEAST} or more. It has {figure}."
    if facts["low"] <= facts["untrained_length"]:
        return f"**Do not serve this draft: it is not shown to be better than an untrained one**: {figure}, {untrained}."
    if champion and champion.itself:
        return f"**Go on serving this draft: it is the champion**, with {figure}, {untrained}."
    if champion and champion.facts is None:
        return f"**Not decided: other answers judged the champion**, so retrain to compare them; this draft has {figure}."
    if champion and (champion.longer is None or champion.longer[0] <= 0):
        return f"**Do not serve this draft: it is not shown to be better than the champion**: {figure}, {_against(champion)}."
    against = f"{untrained}, {_against(champion)}" if champion else untrained
    if facts["method"] == "replay":
        return f"**Not decided: try this draft in your engine first**; by replay alone it has {figure}, {against}."
    return f"**Serve this draft**: {figure}, {against}."


def _against(champion: Champion) -> str:
    assert champion.facts is not None
    its = f"{champion.facts['length']:.2f} the champion"
    return f"{its} (longer by {champion.longer[0]:+.2f} to {champion.longer[1]:+.2f})" if champion.longer else its
