"""States drawn from an engine are those of our own extraction; an engine that gives others is named before any are drawn."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from errors import UserError
from kimi_adapters.layer_proof import REFERENCE
from kimi_adapters.own_streams import own_streams
from kimi_adapters.weights import Checkpoint
from running.job import read_outputs
from tasks import engine_states
from tests.kimi_adapters.llama_fixtures import write_tiny_llama
from tests.servers import free_port
from tests.states_endpoint import MODEL, VERSION, StatesEndpoint
from tests.tasks.stage_jobs import LAYERS, Bench, Made, Text

MANNERS = {"timeout": 300.0, "attempts": 3, "backoff": 0.01, "concurrency": 3, "max_errors": 0.4}
SETTINGS = {
    "engine": "vllm",
    "version": VERSION,
    "layer_ids": LAYERS,
    "state_dtype": "float32",
    "compute_dtype": "float32",
}


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("llama")
    write_tiny_llama(folder)
    return folder


@pytest.fixture(scope="module")
def reference(verifier: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference")
    with open(folder / REFERENCE, "wb") as file:
        own_streams(Checkpoint(verifier), range(20)).write(file)
    return folder


@pytest.fixture
def endpoint(verifier: Path, tmp_path: Path) -> Iterator[StatesEndpoint]:
    with StatesEndpoint(verifier, tmp_path / "states", list(LAYERS)).served() as served:
        yield served


@pytest.fixture
def bench(verifier: Path, tmp_path: Path) -> Bench:
    return Bench(tmp_path, verifier)


def shard(bench: Bench, *seeds: int) -> Made:
    samples = [np.random.default_rng(seed).integers(0, 97, 5 + seed).tolist() for seed in seeds]
    return bench.shard([Text(ids, [1] * len(ids)) for ids in samples])


def draw(
    bench: Bench,
    endpoint: StatesEndpoint,
    reference: Path,
    *shards: Made,
    key: str | None = None,
    model: str = MODEL,
    **settings: Any,
) -> list[Any]:
    """Run the stage on shards; the events that its jobs sent, when it fails, too. ``key`` names the variable that has it."""
    events: list[Any] = []
    knobs = {**MANNERS, "url": endpoint.url, "model": model, "api_key_env": key}
    inputs = {"verifier": bench.verifier, "head": bench.verifier, "reference": reference, "folder": endpoint.folder}
    jobs = [bench.one_job({**SETTINGS, **settings}, {"ids": one.ids, **inputs}, knobs, events) for one in shards]
    try:
        engine_states.compute_shards(jobs)
    except UserError as error:
        events.append({"event": "failed", "why": str(error)})
    return events


def outputs(events: list[Any]) -> list[Any]:
    return [event["outputs"] for event in events if event["event"] == "outputs"]


def why(events: list[Any]) -> str:
    return "".join(event["why"] for event in events if event["event"] == "failed")


def test_the_same_artifacts_as_our_own_extraction(bench: Bench, endpoint: StatesEndpoint, reference: Path) -> None:
    both = [shard(bench, 1, 2, 3), shard(bench, 4)]
    bench.extract(*both)
    drawn = outputs(draw(bench, endpoint, reference, *both))
    assert [one["states"]["ref"]["digest"] for one in drawn] == [one.states for one in both]
    assert [one["stats"]["ref"]["digest"] for one in drawn] == [one.stats for one in both]
    assert drawn[0]["states"]["ref"]["facts"] == {"tokens": 21, "hidden_size": 48, "layer_ids": LAYERS, "dtype": "float32"}
    assert {path.stem for path in endpoint.folder.iterdir()} == {"foreign"}  # what was taken over is gone


@pytest.mark.parametrize("fault", ["500", "truncated", "other ids", "swapped", "short", "nan"])
def test_a_wrong_answer_is_asked_for_again(bench: Bench, endpoint: StatesEndpoint, reference: Path, fault: str) -> None:
    mine = shard(bench, 1, 2)
    bench.extract(mine)
    endpoint.fault = lambda number: fault if number == 2 else ""  # the first is the proof's
    (drawn,) = outputs(draw(bench, endpoint, reference, mine))
    assert drawn["states"]["ref"]["digest"] == mine.states
    assert endpoint.asked == 4


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("swapped", "the file is of other tokens"),
        ("other ids", "the answer is for other tokens"),
        ("short", "the file has states of shape"),
        ("nan", "its states are not finite"),
        ("500", "status 500"),
        ("400", "status 400"),
        ("dies", "nothing answers at http://127.0.0.1"),
        ("half", "the file is in bfloat16, and hidden_states.compute_dtype is float32"),
    ],
)
def test_a_sample_that_stays_wrong_stops_its_shard_alone(
    bench: Bench, endpoint: StatesEndpoint, reference: Path, fault: str, reason: str
) -> None:
    endpoint.fault = lambda number: fault if number > 2 else ""
    events = draw(bench, endpoint, reference, shard(bench, 1), shard(bench, 2))
    assert len(outputs(events)) == 1
    assert "sample 0 got no states from the engine in 3 tries" in why(events) and reason in why(events)
    assert {path.stem for path in endpoint.folder.iterdir()} <= {"foreign"}


@pytest.mark.parametrize(("fault", "reason"), [("nan", "its states are not finite"), ("400", "status 400")])
def test_a_sample_that_cannot_be_used_is_counted_and_put_aside(
    bench: Bench, endpoint: StatesEndpoint, reference: Path, fault: str, reason: str
) -> None:
    """One of three: no state of it is a number, the others' are as they are; validation's quarantine has it."""
    mine = shard(bench, 1, 2, 3)
    bench.extract(mine)
    ours = bench.states(mine)
    endpoint.fault = lambda number: fault if number > 1 and len(endpoint.prompts[-1]) == 7 else ""
    events = draw(bench, endpoint, reference, mine)
    (drawn,) = outputs(events)
    assert drawn["stats"]["ref"]["facts"] == {"tokens": 21, "samples": 3, "not_finite": 1, "unusable": {reason: 1}}
    mine.states, mine.stats = (bench.store.commit(one).digest for one in read_outputs({"outputs": drawn}).values())
    for name, rows in bench.states(mine).items():
        assert np.isnan(rows[6:13]).all(), name
        assert np.array_equal(rows[:6], ours[name][:6]) and np.array_equal(rows[13:], ours[name][13:]), name
    assert bench.merge(bench.check(mine)).quarantine == {mine.ids: [1]}
    assert {path.stem for path in endpoint.folder.iterdir()} <= {"foreign"}


def test_a_sentence_holds_no_token(bench: Bench, endpoint: StatesEndpoint, reference: Path, caplog: Any) -> None:
    endpoint.fault = lambda number: "other ids" if number > 1 else ""
    events = draw(bench, endpoint, reference, bench.shard([Text([71, 72, 73], [1, 1, 1])]))
    assert why(events) and "71, 72" not in json.dumps(events) + caplog.text


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"shift": 1}, "its ids are shifted by +1"),
        ({"shift": -1}, "its ids are shifted by -1"),
        ({"last": lambda state, it: it.normed(state)}, "AFTER the final norm"),
        ({"last": lambda state, it: it.normed(it.normed(state))}, "normed twice"),
        ({"layer_ids": LAYERS[:-1]}, "gives 3 states a token where 4 were asked for"),
        ({"layer_ids": [0, *LAYERS[1:]]}, "gives as layer.1 what is nearest to layer.0"),
        ({"prefix_caching": "True"}, "--no-enable-prefix-caching"),
        ({"prefix_caching": "maybe"}, "--no-enable-prefix-caching"),
    ],
)
def test_wrong_on_purpose_is_named_before_any_sample_is_asked_for(
    bench: Bench, endpoint: StatesEndpoint, reference: Path, wrong: dict[str, Any], sentence: str
) -> None:
    if wrong.get("shift") == 1:
        wrong = {**wrong, "layer_ids": [0, 1, 2]}
    asked: dict[str, Any] = {"layer_ids": [0, 1, 2]} if wrong.get("shift") == 1 else {}
    for name, value in wrong.items():
        setattr(endpoint, name, value)
    events = draw(bench, endpoint, reference, shard(bench, 1), **asked)
    assert sentence in why(events) and endpoint.asked <= 1 and not outputs(events)


def test_another_version_and_samples_too_long_are_refused(bench: Bench, endpoint: StatesEndpoint, reference: Path) -> None:
    assert f"runs version {VERSION}" in why(draw(bench, endpoint, reference, shard(bench, 1), version="0.32.0"))
    assert "--max-model-len 129" in why(draw(bench, endpoint, reference, shard(bench, 123)))
    assert endpoint.asked == 0


def test_an_endpoint_that_is_down_or_serves_another_model(bench: Bench, endpoint: StatesEndpoint, reference: Path) -> None:
    mine = shard(bench, 1)
    assert f"serves {MODEL} and not test/whole: correct" in why(draw(bench, endpoint, reference, mine, model="test/whole"))
    endpoint.url = f"http://127.0.0.1:{free_port()}"
    told = draw(bench, endpoint, reference, mine)
    assert f"nothing answers at the endpoint {endpoint.url} after 3 tries: start it" in why(told)
    assert endpoint.asked == 0 and not outputs(told)


def test_other_weights_under_the_right_name_are_told_by_the_proof(
    bench: Bench, endpoint: StatesEndpoint, reference: Path, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    write_tiny_llama(tmp_path / "other", seed=6)
    with StatesEndpoint(tmp_path / "other", endpoint.folder, list(LAYERS)).served() as other:
        events = draw(bench, other, reference, shard(bench, 1))
    assert f"the endpoint {other.url} gives states that are none of this verifier's" in why(events)
    assert "no states were drawn" in why(events) and other.asked == 1 and not outputs(events)


def test_the_key_goes_into_the_header_and_nowhere_else(
    bench: Bench, endpoint: StatesEndpoint, reference: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """The endpoint refuses whoever comes without it, the proof's requests and the samples' alike."""
    endpoint.key = secret = "sk-Quetzal-7"
    caplog.set_level("DEBUG")
    monkeypatch.setenv("ENDPOINT_KEY", secret)
    mine = shard(bench, 1, 2)
    events = draw(bench, endpoint, reference, mine, key="ENDPOINT_KEY")
    assert len(outputs(events)) == 1 and endpoint.asked == 3
    monkeypatch.setenv("ENDPOINT_KEY", "sk-Quetzal-8")
    events += draw(bench, endpoint, reference, mine, key="ENDPOINT_KEY")
    assert "refuses the key" in why(events)
    assert "refuses the key" in why(draw(bench, endpoint, reference, mine))
    written = [path.read_bytes() for path in bench.folder.rglob("*") if path.is_file()]
    assert len(written) > 3 and not any(b"Quetzal" in content for content in written)
    assert "Quetzal" not in json.dumps(events) + caplog.text
