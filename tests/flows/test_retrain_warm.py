"""Retraining that starts each draft from the champion: the first has none to start from."""

from collections.abc import Collection
from pathlib import Path

from artifacts.records import Record, read_record
from flows.planning import plan
from tasks.settings import Settings
from tests.month import Month, good, good_again, write_verifier


def training_of(month: Month, draft: str | None) -> Record:
    paths = (month.host.records.root / "training").glob("*.json")
    (found,) = (one for one in map(read_record, paths) if one.outputs["draft"].digest == draft)
    return found


def test_each_draft_starts_from_the_champion_that_was_there(tmp_path: Path, whole_verifier: Path) -> None:
    month = Month(tmp_path, write_verifier(tmp_path / "verifier", whole_verifier))
    planned = list[str]()

    def before(settings: Settings, left_out: Collection[str]) -> None:
        """What the flow does before anything costly."""
        walk = plan(settings, month.host, left_out=left_out)
        planned.extend(step.status for step in walk.steps if step.stage == "training")

    first, second = (month.retrain(land, before, parent="champion").outcome for land in (good, good_again))
    assert first.verdict == "promoted" and second.champion == first.candidate != second.candidate
    assert "input parent" not in training_of(month, first.candidate).parts
    assert training_of(month, second.candidate).parts["input parent"] == first.candidate
    assert planned == ["may run", "may run"]
