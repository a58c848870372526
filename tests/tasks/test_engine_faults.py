"""An engine that fails, is used by others or is another one: what passes is measured anew, the rest is told in one sentence."""

from typing import Any

import pytest

from errors import UserError
from kimi_adapters.acceptance_length import total
from tests.engine_endpoint import Endpoint, Engine, serving
from tests.tasks.engine_judge import ROWS, TOKENS, K


def test_an_engine_that_others_use_cannot_be_judged(judged: Any, engine: Engine, prophet: Any) -> None:
    drafted = Endpoint(engine, draft=prophet)

    def somebody_else(number: int) -> str:
        drafted.counts["generated"] += 5
        return ""

    drafted.fault = somebody_else
    with serving(drafted), pytest.raises(UserError, match="others ask it, too"):
        judged(drafted)


@pytest.mark.parametrize(
    ("draft", "k", "why"), [(False, K, "drafted nothing"), (True, 2, "drafts 3 tokens a step and acceptance.k is 2")]
)
def test_an_engine_with_another_draft_is_told(judged: Any, engine: Engine, prophet: Any, draft: bool, k: int, why: str) -> None:
    with serving(Endpoint(engine, draft=prophet if draft else None)) as endpoint, pytest.raises(UserError, match=why):
        judged(endpoint, k=k)


def test_an_engine_that_should_have_no_draft_and_has_one_is_told(judged: Any, engine: Engine, prophet: Any) -> None:
    with serving(Endpoint(engine, draft=prophet)) as endpoint, pytest.raises(UserError, match="has a draft, too"):
        judged(endpoint, endpoint)


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("500", "gives prompt p0 no answer .status 500: the engine is dead.: see its log"),
        ("truncated", "gives prompt p0 no answer .the answer broke off"),
        ("killed", "nothing answers at the endpoint"),
    ],
)
def test_an_engine_that_fails_is_told_in_one_sentence(judged: Any, engine: Engine, prophet: Any, fault: str, why: str) -> None:
    failing = Endpoint(engine, lambda number: fault, draft=prophet)
    with serving(failing), pytest.raises(UserError, match=why) as told:
        judged(failing)
    assert len(str(told.value).splitlines()) == 1 and "owls" not in str(told.value)


@pytest.fixture
def length(engine: Engine, prophet: Any) -> float:
    """The acceptance length of a run in which nothing goes wrong. After it the engine answers at once."""
    found = [engine.answer(engine.prompt(row["messages"]), TOKENS, 0.0, n, prophet, K)[1] for n, row in enumerate(ROWS)]
    return round(total([one for one in found if one], K).length, 4)


@pytest.mark.parametrize("fault", ["truncated", "swapped", "slow", "500", "not json"])
def test_an_answer_that_had_to_be_asked_for_again_is_not_counted_twice(
    judged: Any, engine: Engine, prophet: Any, length: float, fault: str
) -> None:
    """One request of the measured run fails, and what the engine wrote for it is in its counters."""
    drafted = Endpoint(engine, lambda number: fault if number == 3 else "", draft=prophet)
    with serving(drafted):
        facts, _ = judged(drafted, timeout=2.0 if fault == "slow" else 60.0, temperatures=[])
    assert facts["length"] == length and facts["prompts"] == 2
    assert len(drafted.asked) == 1 + 3 + 2, "the warming one, a run with a repeat, and the run that counts"


def test_an_engine_that_never_gives_all_answers_at_once_is_not_measured(judged: Any, engine: Engine, prophet: Any) -> None:
    drafted = Endpoint(engine, draft=prophet)
    drafted.fault = lambda number: "truncated" if number % 3 == 2 else ""
    with serving(drafted), pytest.raises(UserError, match="had to be asked for again in each of 3 runs"):
        judged(drafted)


def test_an_engine_that_is_slow_with_all_answers_is_told(judged: Any, engine: Engine, prophet: Any) -> None:
    drafted = Endpoint(engine, lambda number: "slow", draft=prophet)
    with serving(drafted), pytest.raises(UserError, match="gives prompt p0 no answer .no answer within 0.5 s.: see its log"):
        judged(drafted, timeout=0.5)


def test_an_engine_that_is_down_is_told(judged: Any, engine: Engine, prophet: Any) -> None:
    with serving(Endpoint(engine, draft=prophet)) as gone:
        pass
    with pytest.raises(UserError, match="nothing answers at the endpoint http://127.0.0.1:.* start it, or correct its address"):
        judged(gone)


def test_an_engine_of_another_model_is_told(judged: Any, engine: Engine, prophet: Any) -> None:
    drafted = Endpoint(engine, draft=prophet)
    with serving(drafted), pytest.raises(UserError, match="serves test/small and not test/large: correct endpoint.model"):
        judged(drafted, model="test/large")
    assert drafted.asked == []


def test_only_the_plain_engine_is_down(judged: Any, engine: Engine, prophet: Any) -> None:
    with serving(Endpoint(engine)) as gone:
        pass
    with (
        serving(Endpoint(engine, draft=prophet)) as drafted,
        pytest.raises(UserError, match=f"nothing answers at .*{gone.url[7:-3]}"),
    ):
        judged(drafted, gone)
