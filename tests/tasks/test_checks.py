"""When counts prove a fault of a shard, and when they do not."""

import json

import pytest

from tasks.checks import Evidence, Fault


def shifted(here: int, back: int, ahead: int, compared: int = 1000) -> list[Fault]:
    return Evidence(rows=compared, compared=compared, agreed=(back, here, ahead)).faults()


@pytest.mark.parametrize(
    ("here", "back", "ahead", "found"),
    [
        (990, 8, 8, []),  # greedy answers of SmolLM2
        (380, 1, 20, []),  # text of others under SmolLM2
        (61, 37, 58, []),  # text of others under the first four of its layers
        (20, 45, 10, []),  # a model that agrees with nothing proves nothing
        (500, 520, 500, []),  # a loop agrees with every shift
        (8, 990, 8, [Fault.LATE]),
        (20, 1, 380, [Fault.EARLY]),
        (0, 0, 0, []),
    ],
)
def test_a_shift_must_be_clear_and_the_model_must_know_something(here: int, back: int, ahead: int, found: list[Fault]) -> None:
    assert shifted(here, back, ahead) == found


def test_what_no_shard_shows_alone_all_show_together() -> None:
    little = Evidence(rows=20, compared=20, agreed=(0, 1, 9))
    assert little.faults() == []
    assert sum([little] * 10, Evidence()).faults() == [Fault.EARLY]


def test_normed_rows_count_only_where_the_text_says_so_too() -> None:
    normed = Evidence(rows=100, unit=99, bare=100, log_prob=-500.0, log_prob_bare=-90.0)
    assert normed.faults() == [Fault.NORMED]
    assert Evidence(rows=100, unit=99, bare=100, log_prob=-90.0, log_prob_bare=-500.0).faults() == []
    assert Evidence(rows=100, unit=90, log_prob=-500.0).faults() == []


def test_evidence_survives_its_json() -> None:
    one = Evidence(rows=3, compared=2, agreed=(0, 1, 2), log_prob=-1.5)
    assert Evidence.of(json.loads(json.dumps(one.as_dict()))) == one
