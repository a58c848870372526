"""What a device can do: the attention, the loss and why, the dtype."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from errors import UserError
from kimi_adapters.training_choices import checked_loss, choose
from tests.kimi_adapters.test_trainer import RECIPE, data, run


def test_the_choices_of_a_cpu_are_told(tmp_path: Path) -> None:
    expected = {
        "device": "cpu", "attention": "sdpa", "loss": "eager", "loss_because": "a fused one needs a GPU",
        "dtype": "float32",
    }  # fmt: skip
    told: list[dict[str, str]] = []
    assert choose(RECIPE, torch.device("cpu")) == expected
    assert run(data(tmp_path), tmp_path / "c", on_choices=told.append).choices == expected and told == [expected]


def test_a_fused_loss_that_raises_gives_the_eager_one_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    """Triton finds no driver where there is no GPU, and where there is one cannot reach what lies on the CPU."""
    loss, because = checked_loss("kl_div", torch.device("cpu"))
    assert loss == "eager" and because in ("the fused one raised RuntimeError", "the fused one raised ValueError")
    assert "the fused kl_div loss fails here" in caplog.text and "Traceback" in caplog.text


def test_a_pack_of_broken_blocks_is_refused_before_a_gpu_is_touched() -> None:
    with pytest.raises(UserError, match="multiple of 128"):
        choose(replace(RECIPE, pack_tokens=200), torch.device("cuda"))
