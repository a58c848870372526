"""An engine that the stage starts: with which arguments, once with the draft and once without, and never left behind."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from errors import UserError
from tests.engine_endpoint import MODEL
from tests.tasks.engine_judge import TOKENS, K

COMMAND = [sys.executable, "-m", "tests.fake_vllm"]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A draft of an architecture that is not read here."""
    folder = tmp_path / "foreign"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": ["Eagle3DeepseekV2ForCausalLM"]}))
    return folder


def starts(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "starts").read_text().splitlines()]


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {"PYTHONPATH": str(ROOT), "STARTS": str(folder / "starts"), **more}


def test_it_starts_with_the_draft_and_then_without(judged: Any, foreign: Path, cut_verifier: Path, tmp_path: Path) -> None:
    facts, written = judged.started(COMMAND, environment(tmp_path), foreign)
    drafted, plain = starts(tmp_path)
    port, other = (one["arguments"].pop() for one in (drafted, plain))
    own = ["--served-model-name", MODEL, "--generation-config", "vllm", "--dtype", "float32"]
    alone, at = ["serve", str(cut_verifier), *own], ["--host", "127.0.0.1", "--port"]
    draft = drafted["arguments"].pop(drafted["arguments"].index("--speculative-config") + 1)
    assert json.loads(draft) == {"method": "eagle3", "model": str(foreign), "num_speculative_tokens": K}
    assert drafted["arguments"] == [*alone, "--speculative-config", *at] and plain["arguments"] == [*alone, *at]
    assert port.isdigit() and other.isdigit()
    assert not any(Path(f"/proc/{one['pid']}").exists() for one in (drafted, plain))
    assert (facts["equal"], facts["repeats_equal"], facts["tokens"]) == (2, 2, 2 * TOKENS) and len(written["cases"]) == 2
    assert 1.0 <= facts["length"] < 1.5 and facts["steps"] > TOKENS


def test_it_is_ended_when_the_draft_cannot_be_judged(judged: Any, foreign: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="gives prompt p0 no answer .status 500: the engine is dead.: see its log"):
        judged.started(COMMAND, environment(tmp_path, FAULT="500"), foreign)
    (only,) = starts(tmp_path)
    assert not Path(f"/proc/{only['pid']}").exists()
