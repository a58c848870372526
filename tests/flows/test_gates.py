"""Gates stop a run with one sentence, and only warn in a smoke run."""

import logging
from pathlib import Path
from typing import Any

import pytest

from artifacts.manifest import Ref
from artifacts.stage import Input, Made, Node, Stage
from errors import UserError
from flows.gates import gate_coverage, gate_faults, gate_lost, gate_quarantine, gate_sides, thin_slices
from tasks import acceptance
from tasks.checks import Fault
from tasks.handles import Shard, Verifier
from tasks.settings import AcceptanceSettings, Settings


def made(kind: str, output: str, facts: dict[str, Any], name: str = "") -> Made:
    """A finished node with one output."""
    node = Node(Stage("validation", "tasks.validation", ()), name, {}, {})
    return Made(node, {output: Ref.model_construct(kind=kind, digest="00", facts=facts)})


def check(name: str, *faults: Fault) -> Made:
    return made("shard_check", "check", {"faults": [fault.value for fault in faults]}, name)


def report(**facts: Any) -> Made:
    whole = {"faults": [], "rate": 0.0, "quarantined": 0, "samples": 9, "reasons": {}, **facts}
    return made("validation_report", "report", whole)


def rejects(**facts: Any) -> Made:
    return made("rejects", "rejects", {"rows": 5, "samples": 5, "rejects": 0, "reasons": {}, **facts})


def test_a_fault_of_a_shard_stops_the_run_and_names_the_shard() -> None:
    sound = [check("shard 1/3"), Made(check("shard 3/3").node, None)]
    gate_faults(Settings(), sound)
    with pytest.raises(UserError, match="validation · shard 2/3: its last state has already been through the final norm: mend"):
        gate_faults(Settings(), [sound[0], check("shard 2/3", Fault.NORMED), sound[1]])
    with pytest.raises(UserError, match="and 1 more shards have faults"):
        gate_faults(Settings(), [check("a", Fault.EARLY), check("b", Fault.EARLY)])


def test_a_fault_that_all_shards_show_together_stops_it_too() -> None:
    gate_quarantine(Settings(), report())
    with pytest.raises(UserError, match="of all shards together its ids are off by one"):
        gate_quarantine(Settings(), report(faults=[Fault.LATE.value]))
    with pytest.raises(UserError, match="3 of 9 samples aside"):
        gate_quarantine(Settings(), report(rate=1 / 3, quarantined=3, reasons={"outlying norm": 3}))


def test_a_smoke_run_is_only_warned(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "eyas"):
        gate_faults(Settings(limit=3), [check("a", Fault.EARLY)])
        gate_lost(Settings(limit=3), [rejects(supervised=100, lost_supervised=50)])
    assert len(caplog.records) == 2 and all("only a warning" in record.message for record in caplog.records)


def test_tokens_lost_to_the_length_limit_are_held_against_the_whole_corpus() -> None:
    gate_lost(Settings(), [rejects(), rejects(supervised=1000, lost_supervised=10), rejects(supervised=50, lost_supervised=0)])
    with pytest.raises(UserError, match="loses 21 supervised tokens of 2,000, more than gates.max_lost = 0.01"):
        gate_lost(Settings(), [rejects(supervised=1000, lost_supervised=21), rejects(supervised=1000, lost_supervised=0)])


def test_a_slice_below_its_limit_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    facts = {
        "size": 8,
        "coverage": 0.9,
        "coverage_by_slice": {"script=latin": 0.95, "script=han": 0.4, "script=other": 0.1},
        "supervised_by_slice": {"script=latin": 90_000, "script=han": 1_000, "script=other": 999},
    }
    with caplog.at_level(logging.WARNING, "eyas"):
        gate_coverage(Settings(), made("vocabulary", "vocabulary", facts))
    assert [record.message for record in caplog.records] == thin_slices(Settings(), facts)
    assert "script=han (1,000 supervised tokens)" in caplog.text and "other" not in caplog.text


def corpus(*shards: tuple[int, int]) -> Made:
    """A finished source: supervised tokens of either side of each shard, in one sample where there are any."""
    node = Node(Stage("corpus", "tasks.corpus", ()), "a", {}, {})
    outputs = {}
    for number, (train, held_out) in enumerate(shards):
        facts = {"train_samples": int(train > 0), "held_out_samples": int(held_out > 0)}
        facts |= {"train_supervised": train, "held_out_supervised": held_out}
        outputs[f"masks.{number}"] = Ref.model_construct(kind="loss_masks", digest="00", facts=facts)
    return Made(node, outputs)


@pytest.mark.parametrize("limit", [None, 3])
def test_a_corpus_without_a_side_stops_before_extraction(limit: int | None, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing to train on, or nothing to judge by: training and acceptance would say so hours later."""
    prompts = AcceptanceSettings(prompts="p.jsonl")
    gate_sides(Settings(limit=limit), [corpus((9, 0)), corpus((0, 9))])
    gate_sides(Settings(limit=limit), [corpus((9, 0)), Made(corpus().node, None)])
    with pytest.raises(UserError, match="none of the corpus's 1 samples is to be trained on"):
        gate_sides(Settings(limit=limit, acceptance=prompts), [corpus((0, 9))])
    for unfit in (corpus((9, 0)), corpus((9, 1))):
        with pytest.raises(UserError, match="so nothing could judge the draft"):
            gate_sides(Settings(limit=limit), [unfit])
    assert not caplog.records
    with caplog.at_level(logging.WARNING, "eyas"):
        gate_sides(Settings(limit=limit, acceptance=prompts), [corpus((9, 0), (9, 1))])
    assert "judged by acceptance.prompts alone" in caplog.text


@pytest.mark.parametrize(
    ("sides", "judged"),
    [([(9, 0)], ["real decoding"]), ([(9, 0), (9, 4)], ["real decoding", "replay"]), ([(9, 1)], ["real decoding"])],
)
def test_a_small_corpus_is_judged_by_what_there_is(tmp_path: Path, sides: list[tuple[int, int]], judged: list[str]) -> None:
    """A smoke run may hold nothing out; it is then judged by its prompts, and does not stop at its end."""
    (tmp_path / "p.jsonl").write_text('{"messages": [{"role": "user", "content": "x"}]}\n')
    settings = Settings(limit=3, acceptance=AcceptanceSettings(prompts=str(tmp_path / "p.jsonl")))
    masks = list((corpus(*sides).outputs or {}).values())
    shards = [Shard("a", Input("00"), Input.of(ref), 9) for ref in masks]
    node = Node(Stage("x", "x", ()), "", {}, {})
    unmade = Made(node, None)
    target = Verifier("v", None, "verifier", None, None)
    found = acceptance.nodes(settings, shards, [unmade] * len(shards), unmade, unmade, target)
    assert [one.name for one in found] == judged
