import logging
from pathlib import Path

import pytest
import torch

from kimi_adapters.training_checkpoint import load_checkpoint, save_checkpoint


def tensors(value: float) -> dict[str, torch.Tensor]:
    return {"weight.a": torch.full((3, 2), value), "step.a": torch.tensor(value)}


def test_what_is_saved_comes_back_in_its_own_dtype(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path / "nothing") is None
    state = {"curves": [{"lr": 1e-3 / 3, "loss": 0.1}], "schedulers": [{"last_epoch": 1025}]}
    # 1025 is no bfloat16: a counter kept in it would come back as 1024.
    save_checkpoint(tmp_path, 1025, tensors(1025.0) | {"rng": torch.get_rng_state()}, state)
    loaded = load_checkpoint(tmp_path)
    assert loaded is not None and loaded.step == 1025 and loaded.state == state
    assert loaded.tensors["step.a"].dtype == torch.float32 and float(loaded.tensors["step.a"]) == 1025.0
    assert loaded.tensors["weight.a"].shape == (3, 2) and loaded.tensors["rng"].dtype == torch.uint8


def test_the_last_two_are_kept_and_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "step-00000001.tmp").write_bytes(b"of a run that was killed while it wrote")
    for step in (5, 10, 15):
        save_checkpoint(tmp_path, step, tensors(step), {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000010.safetensors", "step-00000015.safetensors"]


@pytest.mark.parametrize("damage", ["cut", "empty", "foreign", "a bit of a tensor", "a bit of the state"])
def test_a_damaged_newest_is_passed_over_and_told(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    for step in (5, 10):
        save_checkpoint(tmp_path, step, tensors(step), {"step": step})
    newest = tmp_path / "step-00000010.safetensors"
    whole = newest.read_bytes()
    damaged = {
        "cut": whole[:-1],
        "empty": b"",
        "foreign": b"\x02\0\0\0\0\0\0\0{}",
        "a bit of a tensor": whole[:-1] + bytes([whole[-1] ^ 1]),
        "a bit of the state": whole.replace(b": 10}", b": 11}"),
    }
    assert damaged[damage] != whole
    newest.write_bytes(damaged[damage])
    with caplog.at_level(logging.WARNING):
        loaded = load_checkpoint(tmp_path)
    assert loaded is not None and loaded.step == 5 and loaded.state == {"step": 5}
    assert "step-00000010" in caplog.text
