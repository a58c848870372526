"""Which file ``training.continue_from`` names, and what of where a training begins and is saved is in its key."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from artifacts.key import key_of, key_parts
from artifacts.stage import Input, Made, Node, Stage
from errors import UserError
from kimi_adapters.training_checkpoint import save_checkpoint
from running.identity import FileMemo
from tasks import training
from tasks.handles import Verifier
from tasks.settings import Settings

MADE = Made(Node(Stage("validation", "tasks.validation", ()), "", {}, {}), None)
VERIFIER = Verifier("v", None, "not made yet", None, None)


def node(tmp_path: Path, key: str | None) -> Any:
    settings = Settings.model_validate({"store": {"state": str(tmp_path)}, "training": {"continue_from": key}})
    return training.node(settings, [], [], MADE, MADE, VERIFIER, FileMemo(tmp_path))


def test_the_newest_checkpoint_is_an_input_by_content(tmp_path: Path) -> None:
    folder = tmp_path / "work" / ("ab" * 32) / "checkpoints"
    folder.mkdir(parents=True)
    for step in (50, 100):
        save_checkpoint(folder, step, {"weight": torch.tensor([step])}, {})
    made = node(tmp_path, "abababab")
    continued = made.inputs["continued"]
    assert isinstance(continued, Input) and continued.path == str(folder / "step-00000100.safetensors")
    assert "continue_from" not in made.settings and made.settings == node(tmp_path, None).settings
    assert "continued" not in node(tmp_path, None).inputs
    save_checkpoint(folder, 100, {"weight": torch.tensor([7])}, {})
    assert node(tmp_path, "abababab").inputs["continued"].digest != continued.digest
    (tmp_path / "work" / ("ab" * 4 + "cd" * 28) / "checkpoints").mkdir(parents=True)
    with pytest.raises(UserError, match="2 keys begin so"):
        node(tmp_path, "abababab")
    with pytest.raises(UserError, match="no training of that key was cut short"):
        node(tmp_path, "0123456789")


def test_a_torn_checkpoint_is_passed_over_for_the_whole_one_before_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "work" / ("ab" * 32) / "checkpoints"
    for step in (50, 100):
        save_checkpoint(folder, step, {"weight": torch.tensor([step])}, {})
    older, newest = sorted(folder.iterdir())
    whole = newest.read_bytes()
    for torn in (whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1])):
        newest.write_bytes(torn)
        made = node(tmp_path, "abababab")
        assert made.inputs["continued"].path == str(older)
        assert f"{newest} is torn" in caplog.text
        caplog.clear()
    older.write_bytes(b"")
    with pytest.raises(UserError, match="no checkpoint of that key is whole"):
        node(tmp_path, "abababab")


def test_how_often_it_is_saved_is_no_part_of_the_key() -> None:
    def made(training_settings: dict[str, Any]) -> tuple[str, Any]:
        settings = Settings.model_validate({"training": training_settings})
        one = training.node(settings, [], [], MADE, MADE, VERIFIER, None)
        return key_of(key_parts(replace(one, inputs={}), {})), one.knobs["checkpoint_every_steps"]

    usual, often, other = made({}), made({"checkpoint_every_steps": 7}), made({"seed": 7})
    assert usual[0] == often[0] != other[0] and (usual[1], often[1]) == (50, 7)
