from dataclasses import replace
from typing import Any

import pytest
import torch
from speculators.losses import resolve_loss_config

from kimi_adapters.draft import draft_shape
from kimi_adapters.draft_layers import DraftLayers
from kimi_adapters.packing import Batch
from kimi_adapters.recipe import LAYERS, LOSSES, Recipe
from kimi_adapters.ttt import ttt_loss
from tests.kimi_adapters.draft_fixtures import VERIFIER, generator
from tests.kimi_adapters.draft_models import FLAG_SETS, flag_name, tiny_draft


def pack(seed: int = 1) -> Batch:
    """Two documents and padding; the second is the later part of a longer sample, with two answers."""
    source, size, hidden = generator(seed), 40, VERIFIER.hidden_size
    mask = torch.zeros(1, size, dtype=torch.bool)
    mask[0, 6:15] = mask[0, 18:22] = mask[0, 26:33] = True
    return {
        "input_ids": torch.randint(0, VERIFIER.vocab_size, (1, size), generator=source),
        "hidden_states": torch.randn(1, size, 3 * hidden, generator=source),
        "verifier_last_hidden_states": torch.randn(1, size, hidden, generator=source),
        "loss_mask": mask,
        "position_ids": torch.cat([torch.arange(1, 16), torch.arange(5, 23), torch.zeros(7)]).long()[None],
        "document_ids": torch.tensor([0] * 15 + [1] * 18 + [-1] * 7)[None],
    }


def assert_same_as_speculators(recipe: Recipe, attention: str = "sdpa", loss_name: str = "kl_div") -> None:
    model, batch = tiny_draft(recipe, attention=attention), pack()
    loss_config = resolve_loss_config(loss_name, "eager")
    _, theirs, their_sums = model(**batch, ttt_steps=3, ttt_step_loss_decay=0.8, loss_config=loss_config)
    theirs.backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    layers = DraftLayers(draft_shape(model), dict(model.named_parameters()))
    ours, our_sums = ttt_loss(layers, batch, 3, 0.8, loss_config)
    ours.backward()
    torch.testing.assert_close(ours, theirs.detach().float(), rtol=1e-5, atol=0)
    assert {n for n, p in model.named_parameters() if p.grad is not None} == gradients.keys()
    for name, parameter in model.named_parameters():
        if name in gradients:
            assert parameter.grad is not None
            gap = (parameter.grad - gradients[name]).abs().max() / gradients[name].abs().max()
            assert gap < 1e-5, f"{name}: {gap:.1e}"
    for name, value in our_sums.items():
        torch.testing.assert_close(value, their_sums[name].float(), rtol=1e-5, atol=0, msg=name)


@pytest.mark.parametrize("flags", FLAG_SETS, ids=flag_name)
def test_loss_gradients_and_accuracies_are_those_of_the_forward(flags: dict[str, Any]) -> None:
    assert_same_as_speculators(Recipe(**flags))


@pytest.mark.parametrize("trained", [{"train_lm_head": True}, {"train_embeddings": True}], ids=lambda flags: next(iter(flags)))
def test_with_head_or_embeddings_trained(trained: dict[str, Any]) -> None:
    assert_same_as_speculators(Recipe(num_layers=2, norm_output=True, **trained))


def test_the_row_of_the_padding_token_learns_like_any_other() -> None:
    model, batch = tiny_draft(Recipe(train_embeddings=True), verifier=replace(VERIFIER, pad_token_id=5)), pack()
    batch["input_ids"][0, 8] = 5
    loss = model(**batch, ttt_steps=3, loss_config=resolve_loss_config("kl_div", "eager"))[1]
    loss.backward()
    assert model.embed_tokens.weight.grad is not None and model.embed_tokens.weight.grad[5].any()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("layer", LAYERS)
def test_with_two_layers(layer: str, attention: str) -> None:
    assert_same_as_speculators(Recipe(num_layers=2, layer=layer), attention)


@pytest.mark.parametrize("loss_name", LOSSES)
def test_every_loss(loss_name: str) -> None:
    assert_same_as_speculators(Recipe(), loss_name=loss_name)


def test_padding_and_unsupervised_targets_have_no_part_in_it() -> None:
    model, batch = tiny_draft(), pack()
    layers = DraftLayers(draft_shape(model), dict(model.named_parameters()))
    loss_config = resolve_loss_config("kl_div", "eager")
    before, _ = ttt_loss(layers, batch, 3, 1.0, loss_config)
    batch["hidden_states"][0, 33:] = 100.0
    batch["verifier_last_hidden_states"][0, ~batch["loss_mask"][0]] = float("nan")
    after, _ = ttt_loss(layers, batch, 3, 1.0, loss_config)
    assert torch.equal(before, after)


def test_a_pack_without_a_supervised_token_costs_nothing_and_breaks_nothing() -> None:
    model, batch = tiny_draft(), pack()
    batch["loss_mask"][:] = False
    layers = DraftLayers(draft_shape(model), dict(model.named_parameters()))
    loss, sums = ttt_loss(layers, batch, 3, 1.0, resolve_loss_config("kl_div", "eager"))
    loss.backward()
    assert float(loss.detach()) == 0.0 and float(sums["full_acc_0_total"]) == 0.0
    assert all(not p.grad.any() for p in model.parameters() if p.grad is not None)
