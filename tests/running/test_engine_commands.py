"""`eyas prove-layers` on an engine that is right, and on engines that are wrong: a table, one sentence, an exit code."""

import json
import os
import shlex
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from kimi_adapters.engine_command import PLUGINS
from kimi_adapters.own_streams import TEXT
from running.cli import main
from tests.kimi_adapters.llama_fixtures import write_tiny_llama
from tests.states_endpoint import StatesEndpoint

IDS = [1, 2, 3]
ROOT = Path(__file__).parents[2]
# Stands for vLLM: takes what `vllm serve` takes, notes it, and serves our own forward.
ENGINE = """
import json, os, sys, threading
from pathlib import Path
sys.path.insert(0, os.environ["ROOT"])
from tests.states_endpoint import StatesEndpoint
words = sys.argv[1:]
assert words[0] == "serve"
def option(name):
    return words[words.index(name) + 1]
Path(os.environ["NOTES"]).write_text(json.dumps({"pid": os.getpid(), "words": words, "path": os.environ.get("PYTHONPATH")}))
ids = json.loads(option("--speculative-config"))["draft_model_config"]["hf_config"]["eagle_aux_hidden_state_layer_ids"]
folder = json.loads(option("--kv-transfer-config"))["kv_connector_extra_config"]["shared_storage_path"]
endpoint = StatesEndpoint(Path(words[1]), Path(folder), ids[:-1], shift=int(os.environ["SHIFT"]))
with endpoint.served(int(option("--port"))):
    threading.Event().wait()
"""
Prove = Callable[..., tuple[int, list[str]]]


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny one whose tokenizer knows the words of the proof's text."""
    folder = tmp_path_factory.mktemp("llama")
    write_tiny_llama(folder)
    words = {word: number for number, (word, _) in enumerate(Whitespace().pre_tokenize_str(TEXT))}
    tokenizer = Tokenizer(WordLevel({word: number % 97 for word, number in words.items()}))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def prove(verifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Prove:
    def run(*more: str, **wrong: Any) -> tuple[int, list[str]]:
        endpoint = StatesEndpoint(verifier, tmp_path / "states", IDS)
        for name, value in wrong.items():
            setattr(endpoint, name, value)
        with endpoint.served():
            given = ["--endpoint", endpoint.url, "--layer-ids", "1,2,3", "--dtype", "float32", "--folder", str(endpoint.folder)]
            code = main(["prove-layers", str(verifier), *given, *more])
        told = capsys.readouterr()
        return code, (told.out + told.err).splitlines()

    return run


def test_every_state_is_told_and_the_sentence_is_the_last_line(prove: Prove) -> None:
    code, told = prove()
    assert code == 0 and [line.split()[0] for line in told[1:5]] == ["layer.1", "layer.2", "layer.3", "last"]
    assert told[5] == "norm and head on the last state give 16 of the engine's own 16 next tokens"
    assert told[6:] == ["every state is the one asked for, the last before the norm"]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"shift": -1}, "gives states that enter the layers before the layers asked for: its ids are shifted by -1"),
        ({"last": lambda state, it: it.normed(state)}, "gives the last state AFTER the final norm"),
        ({"last": lambda state, it: it.normed(it.normed(state))}, "gives a last state that was normed twice"),
    ],
)
def test_what_is_wrong_is_named_in_one_sentence(prove: Prove, wrong: dict[str, Any], sentence: str) -> None:
    code, told = prove(**wrong)
    assert code == 1 and sentence in told[-1] and len(told) == 7


def test_an_engine_that_caches_prefixes_is_not_asked(prove: Prove) -> None:
    code, told = prove(prefix_caching="True")
    assert code == 2 and len(told) == 1 and "--no-enable-prefix-caching" in told[0]


def test_the_key_is_sent_and_never_told(prove: Prove, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENDPOINT_KEY", "sk-Quetzal-7")
    code, told = prove("--api-key-env", "ENDPOINT_KEY", key="sk-Quetzal-7")
    assert code == 0, told
    code, refused = prove("--api-key-env", "ENDPOINT_KEY", key="sk-another")
    assert code == 2 and "refuses the key" in refused[0]
    code, mistaken = prove("--api-key-env", "hf_Quetzal7")
    assert code == 2 and mistaken[0].startswith("eyas: --api-key-env is wrong: give the NAME")
    assert "Quetzal" not in str([told, refused, mistaken])


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for what `prove-layers` writes; beside it the notes of the engine that it starts."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    for name, value in (("ROOT", ROOT), ("NOTES", tmp_path / "notes.json"), ("ENGINE", ENGINE), ("SHIFT", 0)):
        monkeypatch.setenv(name, str(value))
    return tmp_path


FAKE = shlex.join([sys.executable, "-c", "import os; exec(os.environ['ENGINE'])"])


@pytest.mark.parametrize(
    ("shift", "last"), [(0, "every state is the one asked for"), (-1, "the engine gives states that enter")]
)
def test_without_an_endpoint_an_engine_is_started_and_stopped(
    verifier: Path, started: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shift: int, last: str
) -> None:
    monkeypatch.setenv("SHIFT", str(shift))
    given = ["--layer-ids", "1,2,3", "--dtype", "float32", "--cpu", "--command", FAKE]
    code = main(["prove-layers", str(verifier), *given])
    told = capsys.readouterr().out.splitlines()
    assert code == (1 if shift else 0) and len(told) == 7 and told[-1].startswith(last), told
    notes = json.loads((started / "notes.json").read_text())
    assert notes["path"] == str(PLUGINS) and {"--no-enable-prefix-caching", "--enforce-eager"} <= set(notes["words"])
    assert not os.path.exists(f"/proc/{notes['pid']}") and not list((started / "temporary").iterdir())


def test_an_engine_that_does_not_come_leaves_its_log(verifier: Path, started: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--command", shlex.join([sys.executable, "-c", "raise MemoryError('no room')"])]
    assert main(["prove-layers", str(verifier), "--layer-ids", "1,2,3", *given]) == 2
    told = capsys.readouterr().err
    (log,) = (started / "temporary").glob("*/*")
    assert "MemoryError: no room" in told and str(log) in told


def test_options_of_the_other_kind_of_engine_are_refused(
    verifier: Path, prove: Prove, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = prove("--command", "vllm")
    assert code == 2 and "--endpoint names one that runs" in told[0]
    assert main(["prove-layers", str(verifier), "--folder", "states"]) == 2
    assert "give its address with --endpoint" in capsys.readouterr().err


def test_the_printed_command_is_one_that_a_shell_takes(verifier: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["engine-command", str(verifier), "--layer-ids", "1,3", "--folder", "some states", "--dtype", "float32"]
    assert main(given) == 0
    words = shlex.split(capsys.readouterr().out)
    assert words[:5] == ["vllm", "serve", str(verifier), "--dtype", "float32"]
    config = json.loads(words[words.index("--speculative-config") + 1])
    assert config["draft_model_config"]["hf_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 3, 4]
    transfer = json.loads(words[words.index("--kv-transfer-config") + 1])
    assert transfer["kv_connector_extra_config"]["shared_storage_path"] == str(Path("some states").absolute())
    assert main([*given, "--cpu"]) == 0
    printed = shlex.split(capsys.readouterr().out)
    assert printed[:3] == ["env", f"PYTHONPATH={PLUGINS}", "vllm"] and printed[-1] == "--enforce-eager"
    assert main(["engine-command", str(verifier), "--layer-ids", "one", "--folder", "s"]) == 2
    assert "--layer-ids one are no layer numbers" in capsys.readouterr().err
