"""What an engine made of the draft: shown, and stopped where it differs."""

from typing import Any, cast

import pytest

from artifacts.manifest import Ref
from artifacts.stage import Made, Node, Stage
from errors import UserError
from flows.engine_gates import engine_gap, gate_engine
from flows.report_engine import engine_notes, engine_section
from flows.train_draft import DraftRun
from running.tables import acceptance_table
from tasks.settings import Settings

WARM = {"length": 1.3, "per_position": [0.2, 0.1, 0.0], "steps": 9, "tokens_per_s": 11.0}
ENGINE = {
    "engine": "vLLM 0.32.0",
    "k": 3,
    "concurrency": 4,
    "prompts": 10,
    "prompts_as_ours": 10,
    "tokens": 480,
    "steps": 300,
    "length": 1.32,
    "per_position": [0.27, 0.04, 0.01],
    "tokens_per_s": 20.0,
    "degenerate": 0,
    "warm": {"0.7": WARM},
    "plain_tokens_per_s": 17.0,
    "equal": 10,
    "repeats_equal": 10,
}


def made(kind: str, facts: dict[str, Any], name: str = "") -> Made:
    return Made(
        Node(Stage(kind, f"tasks.{kind}", ()), name, {}, {}), {kind: Ref.model_construct(kind=kind, digest="00", facts=facts)}
    )


DECODED = made("acceptance", {"method": "real decoding", "length": 1.31, "replay_length": 1.4})
REPLAYED = made("acceptance", {"method": "replay", "length": 1.6})


def engine(**facts: Any) -> list[Made]:
    return [made("engine_acceptance", {**ENGINE, **facts})]


def test_the_gap_is_to_what_was_measured_on_the_same_prompts() -> None:
    assert engine_gap([DECODED, REPLAYED], engine()[0]) == {"real decoding": 0.01, "replay": -0.08}
    assert engine_gap([REPLAYED], engine()[0]) == {"replay": -0.28}
    gate_engine(Settings(), [DECODED, REPLAYED], engine())
    with pytest.raises(UserError, match="length of 1.32, -0.28 from our replay, more than gates.max_engine_gap = 0.2"):
        gate_engine(Settings(), [REPLAYED], engine())
    gate_engine(Settings(limit=3), [REPLAYED], engine())


def test_other_greedy_text_passes_only_where_the_engine_does_not_repeat_itself() -> None:
    gate_engine(Settings(), [DECODED], engine(equal=8, repeats_equal=8))
    with pytest.raises(UserError, match="answers 2 of 10 prompts otherwise with the draft, and 1 when it is asked again"):
        gate_engine(Settings(), [DECODED], engine(equal=8, repeats_equal=9))
    gate_engine(Settings(), [DECODED], [made("engine_acceptance", {n: v for n, v in ENGINE.items() if "equal" not in n})])


def section(*rivals: Made, **facts: Any) -> str:
    ran = {"judged": [DECODED], "engines": engine(**facts), "rivals": list(rivals)}
    return engine_section(cast(DraftRun, type("Run", (), ran)))[0]


def test_the_report_and_the_table_show_it() -> None:
    text = section()
    assert "| vLLM 0.32.0 | 0 | **1.32** | 27%, 4%, 1% | 20.0 | 17.0 |" in text and "| 0.7 | **1.30** |" in text
    assert "+0.01 from real decoding and -0.08 from replay here. 10 prompts, 4 at once. Greedy text equals" in text
    apart = section(degenerate=2, sound_length=1.25, prompts_as_ours=7)
    assert "2 answers fall into repetition, which any draft foresees; without those the acceptance length is 1.25." in apart
    assert "Its template writes 3 prompts otherwise" in apart
    (silent,) = engine_notes({name: one for name, one in ENGINE.items() if name not in ("degenerate", "prompts_as_ours")})[2:]
    assert silent == "It gives no token ids, so that repetition and its template were not looked at."
    beside = section(made("engine_acceptance", {**ENGINE, "length": 1.6, "warm": {}}, "theirs"))
    assert "| ours | vLLM 0.32.0 | 0 | **1.32** |" in beside and "| theirs | vLLM 0.32.0 | 0 | **1.60** |" in beside
    assert "vLLM 0.32.0" in acceptance_table({}, [ENGINE]) and "10 of 10" in acceptance_table({}, [ENGINE])
