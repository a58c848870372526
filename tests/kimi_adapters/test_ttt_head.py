"""The head over supervised rows in chunks: the stock forward's loss, gradients and accuracies."""

from typing import Any

import pytest
import torch
from speculators.losses import resolve_loss_config
from torch import Tensor

from kimi_adapters import ttt_head
from kimi_adapters.recipe import LOSSES, Recipe
from kimi_adapters.ttt_head import head_rows_loss
from tests.kimi_adapters.draft_models import FLAG_SETS, flag_name, tiny_draft
from tests.kimi_adapters.test_ttt import pack

Found = tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains that cross chunks, and a last one that is not full: 22 supervised tokens."""
    monkeypatch.setattr(ttt_head, "CHUNK", 5)


def both(recipe: Recipe, loss_name: str = "kl_div", trained_head: bool = False, share: float = 1.0) -> tuple[Found, Found]:
    """(loss, sums, gradients) by head rows and by speculators."""
    model, batch = tiny_draft(recipe), pack()
    model.lm_head.weight.requires_grad_(trained_head)
    config = resolve_loss_config(loss_name, "eager")
    found = []
    for ours in (True, False):
        model.zero_grad()
        if ours:
            loss, sums = head_rows_loss(model, batch, 3, 0.8, config)
        else:
            _, loss, sums = model(**batch, ttt_steps=3, ttt_step_loss_decay=0.8, loss_config=config)
        (loss * share).backward()
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        found.append((loss.detach(), sums, gradients))
    return found[0], found[1]


def assert_same(ours: Found, theirs: Found) -> None:
    torch.testing.assert_close(ours[0], theirs[0].float(), rtol=1e-5, atol=0)
    assert ours[2].keys() == theirs[2].keys()
    for name, value in theirs[2].items():
        gap = (ours[2][name] - value).abs().max() / value.abs().max()
        assert gap < 1e-5, f"{name}: {gap:.1e}"
    for name, value in ours[1].items():
        torch.testing.assert_close(value, theirs[1][name].float(), rtol=1e-5, atol=0, msg=name)


@pytest.mark.parametrize("flags", [FLAG_SETS[0], FLAG_SETS[-1], {"num_layers": 2}], ids=flag_name)
def test_loss_gradients_and_accuracies_are_those_of_the_forward(flags: dict[str, Any]) -> None:
    assert_same(*both(Recipe(**flags)))


@pytest.mark.parametrize("loss_name", LOSSES)
def test_every_loss(loss_name: str) -> None:
    assert_same(*both(Recipe(), loss_name))


def test_a_trained_head_and_a_packs_share_of_its_step() -> None:
    ours, theirs = both(Recipe(), trained_head=True, share=0.25)
    assert "lm_head.weight" in ours[2]
    assert_same(ours, theirs)


def test_nothing_as_wide_as_the_vocabulary_outlives_its_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ttt_head, "CHUNK", 8)
    model, batch, config = tiny_draft(), pack(), resolve_loss_config("kl_div", "eager")
    width, hidden = model.config.draft_vocab_size, model.hidden_size
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        rows = tensor.shape[-1:] == (width,) and tensor.shape[-2:] != (hidden, width)  # the head itself aside
        kept.append(tensor.numel() // width if rows else 0)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        head_rows_loss(model, batch, 3, 1.0, config)
        assert max(kept) <= 8
        model(**batch, ttt_steps=3, loss_config=config)
    assert max(kept) >= 38, "speculators' own keeps all rows"


def test_a_pack_without_a_supervised_token_costs_nothing_and_breaks_nothing() -> None:
    model, batch = tiny_draft(), pack()
    batch["loss_mask"][:] = False
    loss, sums = head_rows_loss(model, batch, 3, 1.0, resolve_loss_config("kl_div", "eager"))
    loss.backward()
    assert float(loss.detach()) == 0.0 and float(sums["full_acc_0_total"]) == 0.0
    assert all(not p.grad.any() for p in model.parameters() if p.grad is not None)
