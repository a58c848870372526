"""Which file ``training.continue_from`` names, and that it is in key and lineage."""

from pathlib import Path
from typing import Any

import pytest

from artifacts.stage import Input, Made, Node, Stage
from errors import UserError
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
        (folder / f"step-{step:08d}.safetensors").write_bytes(b"%d" % step)
    made = node(tmp_path, "abababab")
    continued = made.inputs["continued"]
    assert isinstance(continued, Input) and continued.path == str(folder / "step-00000100.safetensors")
    assert "continue_from" not in made.settings and made.settings == node(tmp_path, None).settings
    assert "continued" not in node(tmp_path, None).inputs
    (folder / "step-00000100.safetensors").write_bytes(b"other bytes")
    assert node(tmp_path, "abababab").inputs["continued"].digest != continued.digest
    (tmp_path / "work" / ("ab" * 4 + "cd" * 28) / "checkpoints").mkdir(parents=True)
    with pytest.raises(UserError, match="2 keys begin so"):
        node(tmp_path, "abababab")
    with pytest.raises(UserError, match="no training of that key was cut short"):
        node(tmp_path, "0123456789")
