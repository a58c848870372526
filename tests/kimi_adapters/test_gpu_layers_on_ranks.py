"""What a GPU does unlike a CPU on two gloo ranks, DDP and FSDP: products deferred, head in chunks, copies in bfloat16."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kimi_adapters import chunked_head
from kimi_adapters.chunked_head import ChunkedHead
from kimi_adapters.draft_layers import DraftLayers
from kimi_adapters.gpu_layers import Copies
from kimi_adapters.pack_loss import PackLoss
from kimi_adapters.recipe import Recipe
from kimi_adapters.ttt import Head
from tests.kimi_adapters.test_data_parallel import RECIPE, assert_close, on
from tests.kimi_adapters.test_gpu_layers import DenseLayers


def dense(self: PackLoss, weights: Mapping[str, Tensor]) -> tuple[DraftLayers, Head]:
    """`_on_gpu` with the attention of a CPU."""
    layers = DenseLayers(self.shape, weights, self.copies or Copies(torch.bfloat16, self.frozen))
    return layers, ChunkedHead(layers, self.loss_config)


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_head, "CHUNK", 5)
    monkeypatch.setattr(PackLoss, "_on_cpu", dense)


@pytest.mark.parametrize(("sharding", "tolerance"), [("none", 0.0), ("fsdp", 1e-3)])
@pytest.mark.parametrize("recipe", [RECIPE, replace(RECIPE, train_lm_head=True, train_embeddings=True)])
def test_two_ranks_train_what_one_does(tmp_path: Path, recipe: Recipe, sharding: str, tolerance: float) -> None:
    alone = on(1, tmp_path, "alone", recipe)
    assert_close(on(2, tmp_path, "two", recipe, sharding), alone, tolerance)


def test_it_is_the_gpus_arithmetic_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounded = on(1, tmp_path, "rounded")["curves"][0]["loss"]
    monkeypatch.undo()
    exact = on(1, tmp_path, "exact")["curves"][0]["loss"]
    assert rounded != exact and rounded == pytest.approx(exact, rel=0.02)
