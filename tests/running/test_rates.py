"""The tokens of a pass that hides the reading of the weights follow from what records measured."""

from typing import Any

from artifacts.records import Record
from artifacts.stage import Input, Node, Stage
from running.rates import hiding_tokens
from running.tables import node_table
from running.walk import Step

STAGE = Stage("hidden_states", module="tasks.hidden_states", libraries=(), gathers=True)
NODE = Node(STAGE, "1", {}, {"verifier": Input("k25")})
READ = {"tokens": 262144, "seconds": 30.8, "waiting": 9.2, "bytes": 595 * 10**9, "reading": 23.2}


def record(measured: dict[str, Any], verifier: str = "k25", gpu: str = "H200") -> Record:
    """A record as extraction leaves it."""
    lineage = {"inputs": {"verifier": {"digest": verifier}}, "gpu": gpu, "pass": measured}
    return Record(key="k", stage="hidden_states", node="1", parts={}, outputs={}, lineage=lineage)


def test_compute_rate_times_the_time_to_read() -> None:
    assert hiding_tokens(NODE, [record(READ)]) == round(262144 / 30.8 * 23.2)


def test_only_what_was_measured_alike_counts() -> None:
    other = READ | {"seconds": 1.0, "reading": 1000.0}
    resident = READ | {"bytes": 0, "reading": 0.0}
    records = [record(READ), record(other, verifier="another"), record(other, gpu="A100"), record(resident)]
    assert hiding_tokens(NODE, records) == hiding_tokens(NODE, records[:1])
    assert hiding_tokens(NODE, [record(resident)]) is None, "it read nothing"
    assert hiding_tokens(NODE, records[1:2]) is None and hiding_tokens(NODE, []) is None


def test_the_plan_says_it_or_nothing() -> None:
    step = Step("hidden_states", "shard 1/1", "run", pass_tokens=197461)
    assert "a pass of 197,461 tokens or more hides the reading" in node_table([step])
    assert "a pass of" not in node_table([Step("hidden_states", "shard 1/1", "run")])
