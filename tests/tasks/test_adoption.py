"""What an adoption rests on: shards that would show a difference, and how many likeliest tokens it changes."""

import json
from pathlib import Path

import pytest

from tasks import adoption
from tests.tasks.stage_jobs import Bench, Text


@pytest.fixture
def bench(tmp_path: Path, cut_verifier: Path) -> Bench:
    return Bench(tmp_path, cut_verifier)


def tokens(first: int, count: int) -> Text:
    """A sample of so many tokens, all different."""
    return Text([*range(first, first + count)], [1] * count)


def test_shards_with_the_longest_and_the_shortest_samples_go_first_then_the_most_varied(bench: Bench) -> None:
    repeated = Text([7] * 12, [1] * 12)
    shards = [
        bench.shard([repeated, repeated]),
        bench.shard([tokens(20, 5), tokens(30, 5)]),
        bench.shard([tokens(20, 9), tokens(40, 9)]),  # the most different tokens
        bench.shard([repeated, Text([8, 8], [1, 1])]),  # the shortest sample
        bench.shard([Text([9] * 13, [1] * 13)]),  # the longest
    ]
    folders = [bench.store.folder(shard.ids) for shard in shards]
    assert [adoption.telling_shards(folders, count) for count in (1, 2, 3, 9)] == [[4], [3, 4], [2, 3, 4], [0, 1, 2, 3, 4]]


def test_rows_whose_likeliest_token_changed_are_counted(bench: Bench) -> None:
    """Of ten rows three point the other way, and one is a little longer."""
    shard = bench.shard([tokens(100, 10)])
    bench.extract(shard)
    states = bench.states(shard)
    before = states["last"].copy()
    states["last"][[2, 5, 7]] = -before[[2, 5, 7]]
    states["last"][4] *= 1.001
    after = bench.with_states(shard, states)
    inputs = {"before": shard.states, "after": after.states, "verifier": bench.verifier}
    made = bench.job(adoption.compute, {}, inputs)["comparison"]
    facts = bench.refs[made].facts
    assert facts["agreement"] == 0.7 and facts["worst_row"] == pytest.approx(2.0)
    told = json.loads((bench.store.open(made) / adoption.COMPARISON).read_text())
    assert told["by_state"]["layer.1"] == 0.0 and told["by_state"]["last"] == pytest.approx(facts["relative_error"])
    assert facts["relative_error"] > 0.1
    assert told["rows"] == 10
