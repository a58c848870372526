"""The draft side on a GPU: speculators' own compiled forward, bfloat16, and our runner beside it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from kimi_adapters import training_choices
from kimi_adapters.draft import draft_config_values
from kimi_adapters.draft_runner import DraftRunner
from kimi_adapters.packing import PackedShards
from kimi_adapters.prefetch import Prefetch, Wanted
from kimi_adapters.process_group import Ranks
from kimi_adapters.recipe import Recipe
from kimi_adapters.trainer import TrainResult, train
from tests.kimi_adapters.draft_fixtures import LAYER_IDS, VERIFIER, VOCABULARY, generator, samples, timeless, write_shard
from tests.kimi_adapters.draft_models import tiny_rows

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
    assert gpu.choices["attention"] == "simple_flex_attention" and gpu.choices["forward"] == "speculators"
    assert gpu.choices["loss"] in ("fused", "eager")
    assert [entry["lr"] for entry in gpu.curves] == [entry["lr"] for entry in cpu.curves]
    ours, theirs = ([entry["loss"] for entry in result.curves] for result in (gpu, cpu))
    assert ours[0] == pytest.approx(theirs[0], rel=0.02)
    assert ours[-1] == pytest.approx(theirs[-1], rel=0.1) and ours[-1] < ours[0]
    again = run(tmp_path, "cuda")
    assert timeless(again.curves) == timeless(gpu.curves)
    assert all(p.dtype == torch.float32 for p in gpu.model.parameters())


def test_the_head_over_supervised_rows_follows_the_stock_forward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stock = run(tmp_path / "stock", "cuda")
    monkeypatch.setattr(training_choices, "GPU_FORWARD", training_choices.HEAD_ROWS)
    ours = run(tmp_path / "ours", "cuda")
    assert ours.choices["forward"] == training_choices.HEAD_ROWS
    mine, theirs = ([entry["loss"] for entry in result.curves] for result in (ours, stock))
    assert mine[0] == pytest.approx(theirs[0], rel=0.005) and mine[-1] == pytest.approx(theirs[-1], rel=0.05)


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
