from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from speculators.losses import resolve_loss_config
from speculators.models.eagle3 import Eagle3DraftModel
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from kimi_adapters.config import TextConfig
from kimi_adapters.deepseek_config import YarnScaling
from kimi_adapters.draft import draft_shape
from kimi_adapters.draft_layers import DraftLayers, KeyStore
from kimi_adapters.llama_config import Llama3Scaling
from kimi_adapters.packing import Batch, PackedShards
from kimi_adapters.recipe import LAYERS, LOSSES, Recipe
from kimi_adapters.ttt import PlainHead, ttt_loss
from tests.kimi_adapters.draft_fixtures import LAYER_IDS, VERIFIER, VOCABULARY, Sample, generator, verifier_tensors, write_shard
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


def assert_same_as_speculators(
    recipe: Recipe, attention: str = "sdpa", loss_name: str = "kl_div", verifier: TextConfig = VERIFIER
) -> None:
    model, batch = tiny_draft(recipe, attention=attention, verifier=verifier), pack()
    loss_config = resolve_loss_config(loss_name, "eager")
    _, theirs, their_sums = model(**batch, ttt_steps=3, ttt_step_loss_decay=0.8, loss_config=loss_config)
    theirs.backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    layers = DraftLayers(draft_shape(model), dict(model.named_parameters()))
    ours, our_sums = ttt_loss(layers, batch, 3, 0.8, PlainHead(layers, loss_config))
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


@pytest.mark.parametrize(
    "scaling", [Llama3Scaling(8.0, 1.0, 4.0, 64), YarnScaling(8.0, 16, 32.0, 1.0, True, 1.2, 1.9)], ids=["llama3", "yarn"]
)
def test_with_the_verifiers_stretched_positions(scaling: Any) -> None:
    assert_same_as_speculators(Recipe(rope="verifier"), verifier=replace(VERIFIER, rope_scaling=scaling))


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
    before, _ = ttt_loss(layers, batch, 3, 1.0, PlainHead(layers, loss_config))
    batch["hidden_states"][0, 33:] = 100.0
    batch["verifier_last_hidden_states"][0, ~batch["loss_mask"][0]] = float("nan")
    after, _ = ttt_loss(layers, batch, 3, 1.0, PlainHead(layers, loss_config))
    assert torch.equal(before, after)


@pytest.mark.parametrize("padding_alone", [False, True])
def test_a_pack_without_a_supervised_token_costs_nothing_and_breaks_nothing(padding_alone: bool) -> None:
    model, batch = tiny_draft(), pack()
    batch["loss_mask"][:] = False
    if padding_alone:
        batch = {name: torch.full_like(v, -1) if name == "document_ids" else torch.zeros_like(v) for name, v in batch.items()}
    layers = DraftLayers(draft_shape(model), dict(model.named_parameters()))
    loss, sums = ttt_loss(layers, batch, 3, 1.0, PlainHead(layers, resolve_loss_config("kl_div", "eager")))
    loss.backward()
    assert float(loss.detach()) == 0.0 and float(sums["full_acc_0_total"]) == 0.0
    assert all(not p.grad.any() for p in model.parameters() if p.grad is not None)


class Watched(DraftLayers):
    """Notes what each step is fed: tokens and positions, and for the first step the auxiliary states."""

    def __init__(self, model: Eagle3DraftModel) -> None:
        super().__init__(draft_shape(model), dict(model.named_parameters()))
        self.fed: list[tuple[list[int], list[int]]] = []
        self.aux = torch.empty(0)

    def first_step(self, tokens: Tensor, aux: Tensor, positions: Tensor, store: KeyStore, bias: Tensor, rows: Tensor) -> Tensor:
        self.fed.append((tokens[rows].tolist(), positions[rows].tolist()))
        self.aux = aux[rows]
        return super().first_step(tokens, aux, positions, store, bias, rows)

    def chain_step(self, tokens: Tensor, hidden: Tensor, positions: Tensor, *rest: Any) -> Tensor:
        self.fed.append((tokens.tolist(), positions.tolist()))
        return super().chain_step(tokens, hidden, positions, *rest)


def test_golden_alignment_of_eight_tokens(tmp_path: Path) -> None:
    """Written by hand: prompt 11 13 15 17, answer 19 21 23 25, chains of 3; the last state of a token knows its successor."""
    ids, mask = [11, 13, 15, 17, 19, 21, 23, 25], [0, 0, 0, 0, 1, 1, 1, 1]
    _, norm, head = verifier_tensors()
    states = {f"layer.{k}": torch.arange(8.0)[:, None].expand(8, VERIFIER.hidden_size).contiguous() for k in LAYER_IDS}
    states["last"] = 50 * head[torch.tensor([13, 15, 17, 19, 21, 23, 25, 27])] / norm
    data = PackedShards([write_shard(tmp_path, [(ids, mask, "train")], states)], LAYER_IDS, 16, 3)
    judged: list[list[int]] = []

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        judged.append(VOCABULARY.targets()[targets[0].argmax(dim=-1)].tolist())
        return logits.sum(dim=-1)

    layers = Watched(tiny_draft())
    ttt_loss(layers, data.load(data.packs(0)[0]), 3, 1.0, PlainHead(layers, {"watched": (loss, 1.0)}))
    # Chains start beside tokens 1 to 6, each with the state of that token and the embedding of the next.
    assert layers.aux[:, 0].tolist() == [1, 2, 3, 4, 5, 6]
    assert layers.fed == [
        ([15, 17, 19, 21, 23, 25], [2, 3, 4, 5, 6, 7]),
        ([17, 19, 21, 23, 25, 0], [3, 4, 5, 6, 7, 8]),
        ([19, 21, 23, 25, 0, 0], [4, 5, 6, 7, 8, 9]),
    ]
    # At each step it is what follows an ANSWER token that is judged: the first answer token is fed, never guessed.
    assert judged == [[21, 23, 25, 27]] * 3


def test_packs_of_twenty_lengths_are_one_compiled_shape(tmp_path: Path) -> None:
    made: list[Sample] = [(list(range(n)), [0] * 3 + [1] * (n - 3), "train") for n in range(8, 28)]
    data = PackedShards([write_shard(tmp_path, made)], LAYER_IDS, 32, 3)
    model, counter = tiny_draft(Recipe(train_embeddings=True)), CompileCounter()
    forward = torch.compile(model.forward, backend=counter)
    loss_config = resolve_loss_config("kl_div", "eager")
    compiled = []
    for piece in data.pieces:
        forward(**data.load([piece]), ttt_steps=1, loss_config=loss_config)[1].backward()
        compiled.append(counter.frame_count)
    assert len({len(piece) for piece in data.pieces}) == 20
    assert compiled[0] > 0 and compiled[-1] <= compiled[0] + 1, "the first gradients may be one more, no length is"
    assert model.embed_tokens.weight.grad is not None and model.embed_tokens.weight.grad.any(), "under compilation, too"
