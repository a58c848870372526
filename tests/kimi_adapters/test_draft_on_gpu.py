"""The draft side on a GPU: our forward beside speculators' compiled one, in bfloat16, and our runner."""

from pathlib import Path
from typing import Any

import pytest
import torch
from speculators.losses import resolve_loss_config
from torch import Tensor

from kimi_adapters.draft import draft_config_values
from kimi_adapters.draft_runner import DraftRunner
from kimi_adapters.pack_loss import PackLoss
from kimi_adapters.packing import Batch, PackedShards, Piece
from kimi_adapters.prefetch import Prefetch, Wanted
from kimi_adapters.process_group import Ranks
from kimi_adapters.recipe import Recipe
from kimi_adapters.trainer import TrainResult, train
from tests.kimi_adapters.draft_fixtures import LAYER_IDS, VERIFIER, VOCABULARY, generator, samples, timeless, write_shard
from tests.kimi_adapters.draft_models import tiny_draft, tiny_rows

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")]
RECIPE = Recipe(epochs=6, pack_tokens=128, lr=3e-3, checkpoint_every_steps=3, head_dim=16)


def run(directory: Path, device: str) -> TrainResult:
    files = [write_shard(directory / str(i), samples(24, seed=i)) for i in range(2)]
    data = PackedShards(files, LAYER_IDS, RECIPE.pack_tokens, RECIPE.ttt_steps)
    told: list[dict[str, Any]] = []
    return train(RECIPE, data, VERIFIER, tiny_rows(), VOCABULARY, directory / device, told.append, Ranks(device))


def test_training_follows_the_cpus_curve_and_says_what_it_chose(tmp_path: Path) -> None:
    torch.manual_seed(0)
    gpu, cpu = run(tmp_path, "cuda"), run(tmp_path, "cpu")
    print(gpu.choices)
    assert gpu.choices["attention"] == "simple_flex_attention"
    assert gpu.choices["loss"] in ("fused", "eager")
    assert [entry["lr"] for entry in gpu.curves] == [entry["lr"] for entry in cpu.curves]
    ours, theirs = ([entry["loss"] for entry in result.curves] for result in (gpu, cpu))
    assert ours[0] == pytest.approx(theirs[0], rel=0.02)
    assert ours[-1] == pytest.approx(theirs[-1], rel=0.1) and ours[-1] < ours[0]
    again = run(tmp_path, "cuda")
    assert timeless(again.curves) == timeless(gpu.curves)
    assert all(p.dtype == torch.float32 for p in gpu.model.parameters())


def test_gradients_are_as_near_to_float32_as_those_of_the_stock_forward() -> None:
    recipe, batch = Recipe(head_dim=64), pack_of_blocks()
    ours, stock = (errors(recipe, batch, by_speculators) for by_speculators in (False, True))
    print(ours, stock)
    for name, error in ours.items():
        assert error < 1.1 * stock[name], f"{name}: {error:.4f}"


@pytest.mark.parametrize("flags", [{"layer": "qwen3", "num_layers": 2}, {"train_lm_head": True, "norm_output": True}])
def test_gradients_of_other_drafts_are_as_near(flags: dict[str, Any]) -> None:
    found = errors(Recipe(head_dim=64, **flags), pack_of_blocks())
    assert max(found.values()) < 0.1, found  # the plain draft's: 0.07


def pack_of_blocks() -> Batch:
    """384 indices: three documents, the last cut by the pack's end, and padding; a third of the tokens is supervised."""
    source, size = generator(5), 384
    documents = torch.tensor([0] * 150 + [1] * 140 + [2] * 70 + [-1] * 24)[None]
    mask = torch.zeros(1, size, dtype=torch.bool)
    for start, stop in ((40, 90), (120, 150), (200, 240), (330, 360)):
        mask[0, start:stop] = True
    places = torch.cat([torch.arange(1, 151), torch.arange(1, 141), torch.arange(9, 79), torch.zeros(24)]).long()
    return {
        "input_ids": torch.randint(0, VERIFIER.vocab_size, (1, size), generator=source),
        "hidden_states": torch.randn(1, size, 3 * VERIFIER.hidden_size, generator=source),
        "verifier_last_hidden_states": torch.randn(1, size, VERIFIER.hidden_size, generator=source),
        "loss_mask": mask,
        "position_ids": places[None],
        "document_ids": documents,
    }


def errors(recipe: Recipe, batch: Batch, by_speculators: bool = False) -> dict[str, float]:
    """Relative errors of the gradients on the GPU beside those in float32 on the CPU."""
    exact, found = gradients(recipe, batch, "cpu"), gradients(recipe, batch, "cuda", by_speculators)
    assert found.keys() == exact.keys()
    return {name: float((found[name] - exact[name]).norm() / exact[name].norm()) for name in exact}


def gradients(recipe: Recipe, batch: Batch, device: str, by_speculators: bool = False) -> dict[str, Tensor]:
    """By our forward, or by speculators' own, compiled, over every index under autocast."""
    attention = "simple_flex_attention" if device == "cuda" else "sdpa"
    model = tiny_draft(recipe, attention=attention).to(device)
    there = {name: value.to(device) for name, value in batch.items()}
    if by_speculators:
        config = resolve_loss_config(recipe.loss, "eager")
        with torch.autocast(device, dtype=torch.bfloat16):
            model(**there, ttt_steps=recipe.ttt_steps, ttt_step_loss_decay=recipe.ttt_decay, loss_config=config)[1].backward()
    else:
        PackLoss(model, recipe, {"loss": "eager"})(there)[0].backward()
    return {name: p.grad.cpu() for name, p in model.named_parameters() if p.grad is not None}


def test_packs_of_twenty_lengths_compile_nothing_after_the_second(tmp_path: Path) -> None:
    """Flex attention, too. The first two are the shortest (one block of rows) and the longest (three)."""
    made = [([i % VERIFIER.vocab_size for i in range(n)], [0] * 20 + [1] * (n - 20), "train") for n in range(140, 400, 13)]
    recipe = Recipe(head_dim=64, pack_tokens=512)
    data = PackedShards([write_shard(tmp_path, made)], LAYER_IDS, recipe.pack_tokens, recipe.ttt_steps)
    model = tiny_draft(recipe, attention="simple_flex_attention").to("cuda")
    loss = PackLoss(model, recipe, {"loss": "eager"})
    shortest, *between, longest = sorted(data.pieces, key=len)
    assert len({len(piece) for piece in data.pieces}) == 20

    def step(piece: Piece) -> None:
        loss({name: value.to("cuda") for name, value in data.load([piece]).items()})[0].backward()

    torch._dynamo.reset()
    for piece in (shortest, longest):
        step(piece)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for piece in between:
            step(piece)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_packs_arrive_on_the_device_with_their_bits(tmp_path: Path, dtype: torch.dtype) -> None:
    data = PackedShards([write_shard(tmp_path, samples(24), dtype=dtype)], LAYER_IDS, RECIPE.pack_tokens, RECIPE.ttt_steps)
    wanted: list[Wanted] = [(pack, (0, number)) for number, pack in enumerate(data.packs(0))]
    with Prefetch(data, torch.device("cuda"), wanted) as batches:
        for pack, _ in wanted:
            ours, theirs = batches.take(), data.load(pack)
            assert all(torch.equal(ours[name].cpu(), theirs[name]) for name in theirs)
            batches.check()


def test_the_runner_drafts_on_a_gpu_what_it_drafts_on_a_cpu(tmp_path: Path) -> None:
    model = run(tmp_path, "cpu").model
    config, source = draft_config_values(model.config, torch.float32), generator(2)
    aux = torch.randn(30, 3 * VERIFIER.hidden_size, generator=source)
    ids = torch.randint(0, VERIFIER.vocab_size, (31,), generator=source)
    rows, chains = torch.arange(30), []
    for device in ("cpu", "cuda"):
        runner = DraftRunner(config, model.state_dict(), device)
        cache = runner.new_cache(30)
        chains.append(runner.propose(runner.feed(aux, ids[1:], cache, rows), rows, 3, cache).cpu())
    assert (chains[0] == chains[1]).float().mean() > 0.97
