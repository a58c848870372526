"""The report's data sections, from real checks; texts of conversations only where they are asked for."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from artifacts.manifest import Ref
from artifacts.stage import Input, Made, Node, Stage
from flows.report_data import data_sections, validation_plots
from flows.train_draft import DraftRun
from kimi_adapters.tokenizer import Tokenizer
from tasks.formats import REPORT
from tasks.handles import Verifier
from tasks.settings import Settings
from tests.tasks.stage_jobs import Bench, Text

CANARY = "zanzibar"
WORDS = {
    "size": 40,
    "target_size": 49_152,
    "coverage": 0.81,
    "held_out_coverage": 0.5,
    "coverage_by_slice": {"script=latin": 0.81, "script=han": 0.2},
    "supervised_by_slice": {"script=latin": 5_000, "script=han": 2_000},
}
REJECTS = {
    "rows": 20,
    "samples": 16,
    "conversations": 15,
    "duplicates": 3,
    "rejects": 1,
    "forgotten": 1,
    "reasons": {"not JSON": 1},
    "supervised": 1_000,
    "lost_supervised": 5,
    "lost_by_length": {"<512": 0, "<2k": 5},
    "round_trip": 0.97,
}


@dataclass
class Run:
    """What the report reads of a run."""

    corpora: list[Made]
    checked: Made
    vocabulary: Made
    verifier: Verifier
    legacy: list[Made] = field(default_factory=list)


def made(**outputs: Ref) -> Made:
    return Made(Node(Stage("corpus", "tasks.corpus", ()), "a", {}, {}), outputs)


def of(kind: str, facts: dict[str, Any]) -> Ref:
    return Ref.model_construct(kind=kind, digest="00", facts=facts)


@pytest.fixture(scope="module")
def run(cut_verifier: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[DraftRun, Bench]:
    """A shard with a quarantined sample whose text has the canary in it, checked and merged by the stages."""
    bench = Bench(tmp_path_factory.mktemp("report"), cut_verifier)
    ids = Tokenizer(cut_verifier).encode(f"The {CANARY} is a bird. " + "It sings well and " * 100)
    good = [Text(ids[3 + i : 40], [0] * 10 + [1] * (27 - i), more={"slices": {"script": "latin"}}) for i in range(3)]
    bad = Text(ids, [0] * len(ids), more={"slices": {"script": "han"}})
    shard = bench.shard([*good, bad])
    bench.extract(shard)
    merged = bench.merge(bench.check(shard))
    assert merged.quarantine == {shard.ids: [3]}
    target = Verifier("cut", {}, "", Input("", path=str(cut_verifier)), "smollm2")
    checked = made(report=bench.refs[merged.digests["report"]], quarantine=bench.refs[merged.digests["quarantine"]])
    found = Run([made(rejects=of("rejects", REJECTS))], checked, made(vocabulary=of("vocabulary", WORDS)), target)
    return cast(DraftRun, found), bench


def test_losses_drops_and_slices_are_told(run: tuple[DraftRun, Bench]) -> None:
    text = data_sections(Settings(), run[1].store, run[0])
    assert "| a | 20 | 15 | 3 | 1 | 1 | 16 | not JSON: 1 |" in text
    assert "cost 5 of 1,000 supervised tokens (0.50%): 5 in conversations of <2k tokens" in text
    assert "97.00% do in the worst source" in text
    assert "1 of 4 samples in quarantine (no supervised token: 1), 0 dropped" in text
    assert "Warning: the draft vocabulary covers 20.0% of the slice script=han (2,000 supervised tokens)" in text
    row = next(line for line in text.splitlines() if line.startswith("| script=latin"))
    assert row.startswith("| script=latin | 3 |") and row.endswith("| 0 | 0 | 81.0% |")
    plots = validation_plots(run[1].store, run[0].checked)
    assert len(plots) == 4 and all(f"]({plot.name})" in text and plot.exists() for plot in plots)


def test_texts_are_shown_only_where_they_are_asked_for(run: tuple[DraftRun, Bench]) -> None:
    made_run, bench = run
    assert CANARY not in data_sections(Settings(), bench.store, made_run)
    shown = data_sections(Settings.model_validate({"report": {"show_text": True}}), bench.store, made_run)
    (quoted,) = [line.strip() for line in shown.splitlines() if CANARY in line]
    assert quoted.startswith(f'"The {CANARY} is a bird.') and len(quoted) == 200 + 2
    assert "`s3` (no supervised token):" in shown


def test_a_report_that_was_collected_is_told_by_its_facts(run: tuple[DraftRun, Bench]) -> None:
    made_run, bench = run
    facts = cast(Any, made_run.checked.outputs)["report"].facts
    lost = Run(made_run.corpora, made(report=of("validation_report", facts)), made_run.vocabulary, made_run.verifier)
    masks = {"samples": 7, "tokens": 1234, "held_out_samples": 2}
    lost.legacy.append(made(masks=of("loss_masks", masks)))
    text = data_sections(Settings(), bench.store, cast(DraftRun, lost))
    assert "7 legacy samples of 1,234 tokens came with their states, 2 of them held out." in text
    assert "1 of 4 samples in quarantine" in text and "![" not in text


def test_a_damaged_report_is_left_out_and_told(run: tuple[DraftRun, Bench], caplog: pytest.LogCaptureFixture) -> None:
    made_run, bench = run
    ref = cast(Any, made_run.checked.outputs)["report"]
    path = bench.store.open(ref.digest) / REPORT
    whole = path.read_bytes()
    path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    text = data_sections(Settings(), bench.store, made_run)
    path.write_bytes(whole)
    assert "![" not in text and "in quarantine" in text
    assert f"validation_report {ref.digest[:12]} is damaged" in caplog.text
