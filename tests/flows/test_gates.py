"""Gates stop a run with one sentence, and only warn in a smoke run."""

import logging
from typing import Any

import pytest

from artifacts.manifest import Ref
from artifacts.stage import Made, Node, Stage
from errors import UserError
from flows.gates import gate_coverage, gate_faults, gate_lost, gate_quarantine, thin_slices
from tasks.checks import Fault
from tasks.settings import Settings


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
