"""What a GPU does unlike `DraftLayers`, in float32 on a CPU: weight gradients deferred, head in chunks, rows in blocks."""

from typing import Any

import pytest
import torch
from speculators.losses import resolve_loss_config
from torch import Tensor

from kimi_adapters import chunked_head
from kimi_adapters.chunked_head import ChunkedHead
from kimi_adapters.deferred_linear import Uses, linear
from kimi_adapters.draft import draft_shape
from kimi_adapters.draft_layers import DraftLayers
from kimi_adapters.gpu_layers import Copies, GpuLayers
from kimi_adapters.recipe import LOSSES, Recipe
from kimi_adapters.rows_attention import joined
from kimi_adapters.ttt import Chains, PlainHead, ttt_loss
from tests.kimi_adapters.draft_models import FLAG_SETS, flag_name, tiny_draft
from tests.kimi_adapters.test_ttt import pack


class DenseLayers(GpuLayers):
    """With the attention of a CPU: flex attention has no backward there."""

    row_block = 8
    sight = DraftLayers.sight
    _attend = DraftLayers._attend


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_head, "CHUNK", 5)


def assert_same_as_plain(recipe: Recipe, loss_name: str = "kl_div", batch: Any = None) -> None:
    model, batch = tiny_draft(recipe), batch or pack()
    weights, config, found = dict(model.named_parameters()), resolve_loss_config(loss_name, "eager"), []
    for layers in (DraftLayers(draft_shape(model), weights), DenseLayers(draft_shape(model), weights, Copies(torch.float32))):
        model.zero_grad()
        head = ChunkedHead(layers, config) if isinstance(layers, GpuLayers) else PlainHead(layers, config)
        loss, sums = ttt_loss(layers, batch, 3, 0.8, head)
        (loss * 0.25).backward()
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        found.append((loss.detach(), sums, gradients))
    plain, ours = found
    torch.testing.assert_close(ours[0], plain[0], rtol=1e-5, atol=1e-9)
    torch.testing.assert_close(ours[1], plain[1], rtol=1e-5, atol=1e-9)
    assert ours[2].keys() == plain[2].keys()
    for name, value in plain[2].items():
        torch.testing.assert_close(ours[2][name], value, rtol=1e-4, atol=1e-5 * float(value.abs().max()) + 1e-12, msg=name)


@pytest.mark.parametrize("flags", [FLAG_SETS[0], FLAG_SETS[-1], {"num_layers": 2}, {"layer": "qwen3"}], ids=flag_name)
def test_loss_gradients_and_accuracies_are_those_of_the_plain_layers(flags: dict[str, Any]) -> None:
    assert_same_as_plain(Recipe(**flags))


@pytest.mark.parametrize("loss_name", LOSSES)
def test_every_loss(loss_name: str) -> None:
    assert_same_as_plain(Recipe(), loss_name)


def test_head_and_embeddings_trained() -> None:
    assert_same_as_plain(Recipe(train_lm_head=True, train_embeddings=True))


def test_a_pack_without_a_supervised_token() -> None:
    batch = pack()
    batch["loss_mask"][:] = False
    assert_same_as_plain(Recipe(), batch=batch)


def test_rows_come_in_whole_blocks_and_those_that_fill_one_meet_nothing() -> None:
    mask = pack()["loss_mask"][0]
    plain, blocks = Chains.of(mask, 3), Chains.of(mask, 3, 8)
    count = len(plain.rows)
    assert count % 8 and len(blocks.rows) % 8 == 0 and torch.equal(blocks.rows[:count], plain.rows)
    assert not blocks.supervised[count:].any() and all(int(counted.max()) < count for counted, _ in blocks.steps)


def test_the_gradient_of_several_uses_is_one_product_at_the_first_ones_backward() -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(6, 6, requires_grad=True), torch.randn(4, 6, requires_grad=True)
    expected = torch.autograd.grad((((x @ weight.t())[:3].tanh() @ weight.t()).tanh() @ weight.t()).sum(), [x, weight])
    uses = Uses()
    out = linear(linear(linear(x, weight, weight.detach(), uses)[:3].tanh(), weight, weight.detach(), uses).tanh(),
                 weight, weight.detach(), uses)  # fmt: skip
    assert uses.open == 3
    found = torch.autograd.grad(out.sum(), [x, weight])
    assert uses.open == 0 and not uses.inputs
    torch.testing.assert_close(found, expected)


def test_what_is_not_trained_is_cast_once_and_the_rest_again_when_asked() -> None:
    """A fused optimizer's step changes a parameter without changing its version: nothing but being told says so."""
    trained, frozen, copies = (
        torch.nn.Parameter(torch.ones(3)),
        torch.ones(3),
        Copies(torch.bfloat16, stays := dict[str, Tensor]()),
    )
    first, kept = copies.of("trained", trained), copies.of("frozen", frozen)
    assert copies.of("trained", trained) is first
    trained.grad = torch.ones(3)
    torch.optim.AdamW([trained], lr=0.5, fused=True).step()
    later = Copies(torch.bfloat16, stays)
    assert torch.equal(later.of("trained", trained), trained.detach().bfloat16())
    assert later.of("frozen", frozen) is kept and not torch.equal(first, trained.detach().bfloat16())


@pytest.mark.parametrize("groups", [4, 2])
def test_two_mixtures_joined_are_one_softmax(groups: int) -> None:
    torch.manual_seed(0)
    rows, heads, size, seen = 5, 4, 8, 7
    queries, bias = torch.randn(rows, heads, size), torch.zeros(rows, seen)
    keys, values, own = torch.randn(seen, groups, size), torch.randn(seen, groups, size), torch.randn(4, rows, groups, size)
    layers = DraftLayers(draft_shape(tiny_draft()), dict(tiny_draft().named_parameters()))
    chain = [(own[0], own[1]), (own[2], own[3])]
    whole = layers._attend(queries, keys, values, bias, chain).view(rows, heads, size)

    def spread(x: Tensor) -> Tensor:
        return x.repeat_interleave(heads // groups, dim=1)

    scores = torch.einsum("rhd,shd->rhs", queries, spread(keys)) * size**-0.5
    mixed = torch.einsum("rhs,shd->rhd", scores.softmax(-1), spread(values))
    found = joined(mixed, scores.logsumexp(-1), queries, [own[0], own[2]], [own[1], own[3]])
    torch.testing.assert_close(found, whole)
