"""The decision as a person reads it: the outcome, the reasons, a row for each measure and slice, what was not judged."""

import json
from pathlib import Path
from typing import Any

import pytest

from artifacts.manifest import Ref
from artifacts.store import Store
from artifacts.writer import ArtifactWriter
from flows.outcome import Outcome
from flows.report_decision import decided, decision_report
from tasks.promotion import DECISION

ROWS = [
    {"method": "replay", "slice": "all", "samples": 1040, "candidate": 1.9, "champion": 1.7, "low": 0.15, "high": 0.25},
    {"method": "replay", "slice": "script=thai", "samples": 0, "candidate": None, "champion": None, "low": None, "high": None},
]
NOTES = ["the slice script=thai has 0 samples, too few to be judged"]


def decision(folder: Path, **whole: Any) -> tuple[Store, Ref]:
    store = Store(folder / "store")
    with store.workspace() as workspace:
        writer = ArtifactWriter("decision", workspace)
        writer.write(DECISION, json.dumps(whole).encode())
        return store, store.commit(writer.seal())


def test_a_row_for_each_measure_and_slice_and_what_was_not_judged(tmp_path: Path) -> None:
    store, ref = decision(tmp_path, rows=ROWS, notes=NOTES)
    outcome = Outcome("refused", ["it is shorter"], "c" * 64, "d" * 64, ref, ["bad.jsonl gave no conversation"])
    text = decision_report(store, outcome)
    assert text.startswith(
        "# Refused\n\n- it is shorter\n\nCandidate `cccccccccccc`, champion when it was compared: `dddddddddddd`."
    )
    assert "Left out: bad.jsonl gave no conversation." in text
    assert "| replay | all | 1,040 | 1.90 | 1.70 | +0.200 (+0.150 to +0.250) |\n| replay | script=thai | 0 |  |  |  |" in text
    assert text.endswith(f"Not judged: {NOTES[0]}.\n")


def test_a_decision_that_was_collected_is_told_by_the_outcome(tmp_path: Path) -> None:
    store, ref = decision(tmp_path, rows=ROWS, notes=NOTES)
    store.delete(ref.digest)
    text = decision_report(store, Outcome("promoted", ["it is longer"], "c" * 64, None, ref))
    assert "champion when it was compared: none yet." in text and "|" not in text


@pytest.mark.parametrize(
    ("verdict", "first"),
    [
        ("promoted", "> **Serve this draft"),
        ("refused", "> **Do not serve this draft"),
        ("waits", "> **Not decided"),
        ("nothing new", "> **Go on serving this draft"),
    ],
)
def test_a_report_begins_with_what_was_decided_and_why(verdict: Any, first: str) -> None:
    text = decided(Outcome(verdict, ["one reason", "another"]))
    assert text.startswith(first) and text.endswith(">\n> - one reason\n> - another")
