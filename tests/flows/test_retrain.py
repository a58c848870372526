"""A month in minutes: four files land, each retraining promotes or refuses, and the champion can be taken back."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from artifacts.records import Record, read_record
from errors import UserError
from flows.champions import Championship
from flows.idle import nothing_new
from flows.outcome import Outcome
from flows.report import write_report
from running import cli
from tasks.settings import Settings
from tests.month import Month, Retrained, flood, good, good_again, write_verifier, wrong_template


@dataclass
class Story:
    """The month and what became of each of its weeks."""

    month: Month
    weeks: dict[str, Retrained] = field(default_factory=dict)
    before_prefect: Outcome | None = None

    def records(self, stage: str) -> list[Record]:
        return [read_record(path) for path in self.month.host.records.paths() if path.parent.name == stage]

    def decision(self, week: str) -> dict[str, Any]:
        ref = self.weeks[week].outcome.decision
        assert ref is not None
        read: dict[str, Any] = json.loads((self.month.host.store.open(ref.digest) / "decision.json").read_text())
        return read


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, whole_verifier: Path) -> Story:
    """Two retrainings of the first week at once, then the other weeks."""
    root = tmp_path_factory.mktemp("month")
    month = Month(root, write_verifier(root / "verifier", whole_verifier))
    told = Story(month)
    good(month.folder)

    def meanwhile(settings: Settings, left_out: Any) -> None:
        told.weeks["first"] = month.retrain()

    told.weeks["late"] = month.retrain(before=meanwhile, seed=1)
    (month.folder / "week1.jsonl").rename(month.folder / "renamed.jsonl")
    told.weeks["idle"] = month.retrain()
    told.before_prefect = nothing_new(month.settings, month.host)
    (month.folder / "renamed.jsonl").rename(month.folder / "week1.jsonl")
    for name, land in (("template", wrong_template), ("flood", flood), ("again", good_again)):
        told.weeks[name] = month.retrain(land)
    return told


def test_promoted_twice_and_refused_twice(story: Story) -> None:
    verdicts = {name: week.outcome.verdict for name, week in story.weeks.items()}
    assert verdicts == {
        "first": "promoted",
        "late": "refused",
        "idle": "nothing new",
        "template": "refused",
        "flood": "refused",
        "again": "promoted",
    }


def test_of_two_at_once_the_second_says_why_not(story: Story) -> None:
    first, late = story.weeks["first"].outcome, story.weeks["late"].outcome
    assert "there is no champion yet" in first.because[0] and first.candidate != late.candidate
    (said,) = late.because
    assert said.startswith(f"{str(first.candidate)[:12]} became champion meanwhile ({first.because[0]} (decision ")
    assert said.endswith("with which this draft was not compared: start the retraining again")


def test_without_news_nothing_runs(story: Story) -> None:
    idle = story.weeks["idle"]
    assert idle.ran == {} and "every source was in the retraining of" in idle.outcome.sentence
    assert story.before_prefect == idle.outcome, "it is known before Prefect starts, and a new name is nothing new"


def test_a_file_that_the_corpus_refuses_is_left_out_from_then_on(story: Story) -> None:
    template = story.weeks["template"]
    assert "week2.jsonl gave no usable conversation in 1 rows (most often: unknown role)" in template.outcome.sentence
    assert template.ran == {} and all(len(story.weeks[name].outcome.left_out) == 1 for name in ("template", "flood", "again"))


def test_one_language_that_got_worse_keeps_the_champion(story: Story) -> None:
    outcome, rows = story.weeks["flood"].outcome, {row["slice"]: row for row in story.decision("flood")["rows"]}
    assert outcome.champion == story.weeks["first"].outcome.candidate
    assert rows["all"]["low"] > 0, "over all samples it was better"
    assert "in the slice script=greek its acceptance length is 1." in outcome.sentence
    assert rows["script=greek"]["candidate"] < rows["script=greek"]["champion"] - 0.5
    assert rows["script=latin"]["candidate"] > rows["script=latin"]["champion"] and "script=latin" not in outcome.sentence


def test_nothing_is_extracted_twice_and_the_champion_is_judged_once_a_corpus(story: Story) -> None:
    shards = [record.parts["input ids"] for record in story.records("hidden_states")]
    assert len(shards) == len(set(shards)) == sum(week.ran.get("hidden_states", 0) for week in story.weeks.values())
    judged = [(record.parts["input draft"], record.parts["input masks.0"]) for record in story.records("acceptance")]
    assert len(judged) == len(set(judged)) + 2, "the champion again as the corpus grew, twice"


def test_the_lineage_says_why(story: Story, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(yaml.safe_dump(story.month.settings.model_dump()))
    decision = story.weeks["flood"].outcome.decision
    assert decision is not None and cli.main(["show", str(path), decision.digest[:12]]) == 0
    shown = capsys.readouterr().out
    assert "verdict refuse" in shown and "script=greek" in shown and f"draft {decision.facts['candidate'][:12]}" in shown


HEADS = ["## Acceptance", "## Training", "## Data", "## What ran", "## Lineage"]


def test_the_report_begins_with_the_verdict_and_has_every_section(story: Story, tmp_path: Path) -> None:
    """That of a retraining with its decision; that of a run, which decides nothing, with what is not compared."""
    firsts = {"flood": "Do not serve this draft: it was refused", "again": "Serve this draft: it has become champion"}
    for week, first in firsts.items():
        outcome = story.weeks[week].outcome
        assert outcome.made is not None
        path, text = write_report(story.month.settings, story.month.host, [], outcome.made, tmp_path / week, outcome)
        whole = path.with_suffix(".md").read_text()
        reasons = "".join(f"\n> - {reason}" for reason in outcome.because)
        assert whole.partition("\n\n")[2].startswith(f"> **{first}.**\n>{reasons}\n\n## Acceptance\n")
        assert [line for line in whole.splitlines() if line.startswith("## ")] == HEADS
        assert text.startswith(whole.partition("![")[0]) and "<blockquote>" in path.read_text()
    made = story.weeks["flood"].outcome.made
    assert made is not None
    _, text = write_report(story.month.settings, story.month.host, [], made, tmp_path / "run")
    assert text.partition("\n\n")[2].startswith("> **Not decided: ") and "Only `eyas retrain` compares slices" in text


def test_the_champion_is_taken_back_and_set_by_one_command(
    story: Story, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(yaml.safe_dump(story.month.settings.model_dump()))
    first, again = (str(story.weeks[name].outcome.candidate) for name in ("first", "again"))
    throne = Championship.of(story.month.settings, story.month.host)
    alias = throne.alias()
    assert alias and alias.digest == again and [move.digest for move in alias.history] == [first, again]
    assert cli.main(["champion", str(path), "--rollback", "--because", "it drawls"]) == 0
    shown = capsys.readouterr().out
    assert f"champion {first}" in shown and "it drawls" in shown and "checkpoint /" in shown
    assert story.month.retrain().ran == {} and throne.alias().digest == first, "what was taken back is not promoted again"  # type: ignore[union-attr]
    assert cli.main(["champion", str(path), "--rollback"]) == 2, "there was no champion before the first"
    assert cli.main(["champion", str(path), "--to", again[:12]]) == 2
    assert cli.main(["champion", str(path), "--to", again[:12], "--because", "it sings"]) == 0
    assert f"champion {again}" in capsys.readouterr().out


def test_a_smoke_run_promotes_nothing(story: Story) -> None:
    with pytest.raises(UserError, match="limit makes a smoke run"):
        nothing_new(story.month.settings.model_copy(update={"limit": 3}), story.month.host)
