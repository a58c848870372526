"""Synthesis by an endpoint that answers with the real small verifier, over real HTTP, and fails in every way that they do."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from artifacts.key import node_parts
from artifacts.stage import Input
from errors import UserError
from kimi_adapters.engine_requests import EndpointFailed
from tasks import endpoint_synthesis
from tasks.chunk_answers import CUT
from tasks.formats import REJECTS
from tasks.handles import Verifier
from tasks.settings import Settings
from tests.engine_endpoint import FORMAT, MODEL, Endpoint, Engine, serving
from tests.servers import free_port
from tests.tasks.endpoint_chunk import ROWS, TOKENS, Chunk


@pytest.fixture(scope="module")
def engine(whole_verifier: Path) -> Engine:
    """The verifier at work; what it has answered once it answers at once."""
    return Engine(whole_verifier)


@pytest.fixture(scope="module")
def expected(engine: Engine) -> list[list[int]]:
    """The verifier's own answers, all different."""
    answers = engine.know([engine.prompt(row["messages"]) for row in ROWS], TOKENS)
    assert len({tuple(ids) for ids in answers}) == len(ROWS)
    return answers


@pytest.fixture
def chunk(tmp_path: Path, whole_verifier: Path) -> Chunk:
    return Chunk(tmp_path / "chunk", whole_verifier)


def test_answers_are_the_verifiers_own_token_for_token(chunk: Chunk, engine: Engine, expected: list[list[int]]) -> None:
    with serving(Endpoint(engine)) as endpoint:
        lines = chunk.answered(endpoint)
    assert [line["answer_ids"] for line in lines] == expected
    assert [line["prompt_ids"] for line in lines] == [engine.prompt(row["messages"]) for row in ROWS]
    assert [line["messages"][-1]["content"] for line in lines] == [engine.tokenizer.decode(ids) for ids in expected]
    assert all(line["greedy"] and line["id"] == row["id"] for line, row in zip(lines, ROWS, strict=True))
    tokens = sum(map(len, expected))
    assert chunk.facts == {"conversations": 4, "tokens": tokens, "errors": 0, "reasons": {}, "text_only": 0}
    assert all(body["model"] == MODEL and body["max_tokens"] == TOKENS for body in endpoint.asked)


@pytest.mark.parametrize("fault", ["500", "busy", "truncated", "not json", "slow", "swapped", "other prompt"])
def test_what_passes_is_tried_again(chunk: Chunk, engine: Engine, expected: list[list[int]], fault: str) -> None:
    """The second and the third request meet the fault; a swapped answer is another prompt's, whole and well formed; so is
    that of `other prompt`, under this request's own id."""
    with serving(Endpoint(engine, lambda number: fault if number in (2, 3) else "")) as endpoint:
        lines = chunk.answered(endpoint, timeout=2.0 if fault == "slow" else 20.0)
    assert [line["answer_ids"] for line in lines] == expected
    assert len(endpoint.asked) > len(ROWS), "asked again"


def test_text_alone_is_taken_where_it_is_whole(chunk: Chunk, engine: Engine, expected: list[list[int]]) -> None:
    """A swapped answer is told by the request's id, which vLLM puts into its own; a text that was cut would teach to stop."""
    chunk.rows = [ROWS[1], ROWS[3]]
    with serving(Endpoint(engine, lambda number: "swapped" if number == 2 else "", token_ids=False)) as endpoint:
        lines = chunk.answered(endpoint, concurrency=1)
    assert [line["messages"][-1]["content"] for line in lines] == [engine.tokenizer.decode(expected[n]) for n in (1, 3)]
    assert not any("answer_ids" in line or "greedy" in line for line in lines) and chunk.facts["text_only"] == 2
    assert len(endpoint.asked) == 3
    chunk.rows = ROWS
    chunk.folder = chunk.folder.with_name("cut")
    with serving(Endpoint(engine, token_ids=False)) as endpoint, pytest.raises(UserError, match=re.escape(CUT)):
        chunk.answered(endpoint)


def test_a_dead_endpoint_keeps_what_it_gave(chunk: Chunk, engine: Engine, expected: list[list[int]]) -> None:
    port = free_port()
    why = f"nothing answers at the endpoint http://127.0.0.1:{port} after 4 tries: start"
    dies = Endpoint(engine, lambda number: "killed" if number == 3 else "")
    with serving(dies, port) as endpoint, pytest.raises(EndpointFailed, match=why):
        chunk.answered(endpoint, concurrency=1)
    with open(chunk.folder / "answers.jsonl", "a") as kept:
        kept.write('{"number": 2, "li')  # torn by a kill
    with serving(Endpoint(engine), port) as endpoint:
        lines = chunk.answered(endpoint, concurrency=1)
    assert [line["answer_ids"] for line in lines] == expected
    assert [body["messages"] for body in endpoint.asked] == [row["messages"] for row in ROWS[2:]], "nothing twice"


def test_errors_are_kept_with_their_reasons_up_to_a_rate(chunk: Chunk, engine: Engine, expected: list[list[int]]) -> None:
    with serving(Endpoint(engine, lambda number: "refused" if number == 2 else "")) as endpoint:
        lines = chunk.answered(endpoint, max_errors=0.25, concurrency=1)
    reason = "status 400: too long for ,"
    assert [line["answer_ids"] for line in lines] == [expected[number] for number in (0, 2, 3)]
    assert chunk.facts["errors"] == 1 and chunk.facts["reasons"] == {reason: 1}
    assert json.loads(chunk.output(REJECTS).read_text()) == {"line": 2, "reason": reason}
    chunk.folder = chunk.folder.with_name("strict")
    why = r"chunk: 1 of 4 prompts have no answer \(most often: status 400: too long"
    refuses = Endpoint(engine, lambda number: "refused" if number == 2 else "")
    with serving(refuses) as endpoint, pytest.raises(UserError, match=why):
        chunk.answered(endpoint, max_errors=0.2, concurrency=1)
    assert len(endpoint.asked) <= 3 and (chunk.folder / "answers.jsonl").read_text().count("\n") == len(endpoint.asked) - 1


def test_an_endpoint_that_is_down_or_serves_another_model(chunk: Chunk, engine: Engine) -> None:
    with pytest.raises(EndpointFailed, match="nothing answers at the endpoint"):
        chunk.answered(Endpoint(engine, url=f"http://127.0.0.1:{free_port()}/v1"))
    why = f"serves {MODEL} and not test/large: correct endpoint.model"
    with serving(Endpoint(engine)) as endpoint, pytest.raises(EndpointFailed, match=why):
        chunk.answered(endpoint, model="test/large")
    assert not endpoint.asked


def test_the_key_comes_from_the_environment_and_stays_there(
    chunk: Chunk, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "sk-Quetzal-7"
    refused = Endpoint(engine, lambda number: "refused", key=secret)
    monkeypatch.setenv("ENDPOINT_KEY", secret + "\n")
    with serving(refused) as endpoint, pytest.raises(UserError) as told:
        chunk.answered(endpoint, api_key_env="ENDPOINT_KEY")
    assert endpoint.headers["Authorization"] == f"Bearer {secret}"
    assert secret not in str(told.value) and "too long for Bearer …" in str(told.value) and "owls" not in str(told.value)
    written = [path.read_bytes() for path in chunk.folder.rglob("*") if path.is_file()]
    assert written and not any(secret.encode() in content for content in written) and secret not in str(chunk.events)
    monkeypatch.setenv("ENDPOINT_KEY", "sk-other")
    with serving(refused) as endpoint, pytest.raises(EndpointFailed, match="refuses the key") as told:
        chunk.answered(endpoint, api_key_env="ENDPOINT_KEY")
    assert "sk-" not in str(told.value)
    monkeypatch.setenv("ENDPOINT_KEY", "sk-one\nsk-two")
    with pytest.raises(UserError, match="no header takes") as told:
        chunk.answered(endpoint, api_key_env="ENDPOINT_KEY")
    assert "sk-" not in str(told.value)


def chosen(path: Path, **endpoint: Any) -> Settings:
    sections = {"endpoint": {"url": "http://127.0.0.1:1/v1", **endpoint}, "data": {"prompts": [str(path)]}}
    return Settings.model_validate({"synthesis": {"source": "endpoint"}, **sections})


@pytest.mark.parametrize(
    ("told", "same"),
    [
        ({"url": "https://elsewhere/v1"}, True),
        ({"concurrency": 200, "timeout": 1.0, "attempts": 2, "backoff": 3.0, "max_errors": 0.5}, True),
        ({"api_key_env": "ANOTHER"}, True),
        ({"model": "another"}, False),
    ],
)
def test_what_is_in_the_key(tmp_path: Path, told: dict[str, Any], same: bool) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    target = Verifier("v", {"roles": {"tokenizer": "aa"}}, "", Input("bb"), FORMAT)
    keys = [node_parts(endpoint_synthesis.nodes(settings, target)[0]) for settings in (chosen(path), chosen(path, **told))]
    assert (keys[0] == keys[1]) is same
    assert "127.0.0.1" not in json.dumps(keys[0])


@pytest.mark.parametrize(
    ("told", "why"),
    [({"url": None}, "endpoint.url is empty"), ({"api_key_env": "NOT_SET_ANYWHERE"}, "NOT_SET_ANYWHERE, which is not set")],
)
def test_what_cannot_work_is_refused_before_anything_runs(tmp_path: Path, told: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        endpoint_synthesis.check(chosen(tmp_path, **told))


@pytest.mark.parametrize(
    "wrong",
    [
        {"api_key_env": "sk-Quetzal-7"},
        {"api_key_env": "hf_Quetzal7"},
        {"url": "http://user:sk-Quetzal-7@host/v1"},
        {"url": "http://host/v1?key=Quetzal"},
        {"plain_url": "http://host?key=Quetzal"},
        {"url": "sk-Quetzal-7"},
    ],
)
def test_a_form_that_holds_a_key_is_refused_without_telling_it(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError) as told:
        chosen(tmp_path, **wrong)
    assert "Quetzal" not in str(told.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"arguments": ["--api-key", "sk-Quetzal-7"]},
        {"arguments": ["--dtype", "float32", "--api_key=sk-Quetzal-7"]},
        {"arguments": ["--hf-token", "hf_Quetzal7"]},
        {"command": ["env", "VLLM_API_KEY=sk-Quetzal-7", "vllm"]},
        {"environment": {"VLLM_API_KEY": "sk-Quetzal-7"}},
        {"environment": {"HF_TOKEN": "hf_Quetzal7"}},
        {"environment": {"aws_secret": "Quetzal"}},
    ],
)
def test_an_engine_that_is_started_gets_no_key_from_the_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="leave the key out") as told:
        Settings.model_validate({"engine": wrong})
    assert "Quetzal" not in str(told.value)


def test_what_only_sounds_like_a_key_is_taken() -> None:
    words = ["--max-num-batched-tokens", "2048", "--ssl-keyfile=key.pem", "--served-model-name", "token"]
    variables = {"TOKENIZERS_PARALLELISM": "false", "HF_TOKEN": ""}
    chosen = Settings.model_validate({"engine": {"arguments": words, "environment": variables}}).engine
    assert chosen.arguments == words and chosen.environment == variables
