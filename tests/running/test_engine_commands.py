"""`eyas prove-layers` on an engine that is right, and on engines that are wrong: a table, one sentence, an exit code."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from kimi_adapters.own_streams import TEXT
from running.cli import main
from tests.kimi_adapters.llama_fixtures import write_tiny_llama
from tests.states_endpoint import StatesEndpoint

IDS = [1, 2, 3]
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
    def run(**wrong: Any) -> tuple[int, list[str]]:
        endpoint = StatesEndpoint(verifier, tmp_path / "states", IDS)
        for name, value in wrong.items():
            setattr(endpoint, name, value)
        with endpoint.served():
            given = ["--endpoint", endpoint.url, "--layer-ids", "1,2,3", "--dtype", "float32", "--folder", str(endpoint.folder)]
            code = main(["prove-layers", str(verifier), *given])
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
