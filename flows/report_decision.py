"""The decision about a retrained draft, as a person reads it."""

import json
from typing import Any

from artifacts.store import Store
from flows.outcome import Outcome
from flows.report_data import open_whole
from tasks.markdown import markdown_table
from tasks.promotion import DECISION

_FIRST = {
    "promoted": "Serve this draft: it has become champion",
    "refused": "Do not serve this draft: it was refused",
    "waits": "Not decided: a person is to say whether this draft becomes champion",
    "nothing new": "Go on serving this draft",
}


def decided(outcome: Outcome) -> str:
    """The first sentence of a retraining's report, which is its decision, and the reasons."""
    reasons = "\n".join(f"> - {reason}" for reason in outcome.because)
    return f"> **{_FIRST[outcome.verdict]}.**\n>\n{reasons}"


def decision_report(store: Store, outcome: Outcome) -> str:
    """The outcome, its reasons, and the acceptance of both drafts by measure and slice, in markdown."""
    sections = [f"# {outcome.verdict.capitalize()}", *(f"- {reason}" for reason in outcome.because)]
    if outcome.candidate:
        champion = f"`{outcome.champion[:12]}`" if outcome.champion else "none yet"
        sections.append(f"Candidate `{outcome.candidate[:12]}`, champion when it was compared: {champion}.")
    sections += [f"Left out: {sentence}." for sentence in outcome.left_out]
    folder = open_whole(store, outcome.decision) if outcome.decision else None
    if folder:
        decision = json.loads((folder / DECISION).read_text())
        head = ["measure", "slice", "samples", "candidate", "champion", "difference (interval)"]
        if decision["rows"]:
            sections.append(markdown_table(head, [_row(row) for row in decision["rows"]]))
        sections += [f"Not judged: {note}." for note in decision["notes"]]
    return "\n\n".join(sections) + "\n"


def _row(row: dict[str, Any]) -> list[str]:
    cells = [row["method"], row["slice"], f"{row['samples']:,}"]
    if row["candidate"] is None:
        return [*cells, "", "", ""]
    difference = f"{row['candidate'] - row['champion']:+.3f} ({row['low']:+.3f} to {row['high']:+.3f})"
    return [*cells, f"{row['candidate']:.2f}", f"{row['champion']:.2f}", difference]
