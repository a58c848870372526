"""A step is the same step however many ranks share it: two real gloo processes beside one."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kimi_adapters.packing import Batch, PackedShards
from kimi_adapters.process_group import Ranks
from kimi_adapters.recipe import Recipe
from kimi_adapters.trainer import train
from tests.kimi_adapters.draft_fixtures import LAYER_IDS, VERIFIER, VOCABULARY, samples, timeless, write_shard
from tests.kimi_adapters.draft_models import tiny_rows
from tests.kimi_adapters.rank_processes import on_ranks

RECIPE = Recipe(epochs=2, pack_tokens=48, lr=3e-3, noise=0.05, packs_per_step=2, checkpoint_every_steps=3, replay_every_steps=3)
Told = list[dict[str, Any]]


def run(
    folder: Path, name: str, recipe: Recipe, ranks: Ranks, sharding: str = "none", stop_after: int = 0, slow: int = -1
) -> None:
    """Trains from shards that are the same every time, rank `slow` slowly; leaves the first rank's result in a file."""
    files = [write_shard(folder / name / str(ranks.number) / str(i), samples(11, seed=i)) for i in range(2)]
    kind = _Slow if ranks.number == slow else PackedShards
    data = kind(files, LAYER_IDS, recipe.pack_tokens, recipe.ttt_steps, recipe.seed, noise=recipe.noise)
    told: Told = []

    def progress(entry: dict[str, Any]) -> None:
        told.append(entry)
        if entry["step"] == stop_after:
            os.kill(os.getpid(), signal.SIGKILL)

    result = train(recipe, data, VERIFIER, tiny_rows(), VOCABULARY, folder / f"checkpoints {name}", progress, ranks, sharding)
    if ranks.first:
        weights = {key: value.clone() for key, value in result.model.state_dict().items()}
        found = {"weights": weights, "curves": result.curves, "best": [result.best_step, result.replayed_length]}
        torch.save({**found, "told": [entry["step"] for entry in told], "packs": len(data.packs(0))}, folder / f"{name}.pt")
    else:
        assert not told, "progress comes from one rank"


class _Slow(PackedShards):
    """Reads each pack 0.2 s late."""

    def load(self, *pack: Any) -> Batch:
        time.sleep(0.2)
        return super().load(*pack)


def on(count: int, folder: Path, name: str, recipe: Recipe = RECIPE, sharding: str = "none") -> dict[str, Any]:
    """The result of a training by so many ranks, going on from what checkpoints there are under the name."""
    codes = on_ranks(count, folder / f"meeting {name} {count}", lambda ranks: run(folder, name, recipe, ranks, sharding))
    assert codes == [0] * count
    result: dict[str, Any] = torch.load(folder / f"{name}.pt")
    return result


def cut_short(count: int, folder: Path, name: str, sharding: str = "none", recipe: Recipe = RECIPE) -> None:
    """The same, its first rank killed after step 5; the newest checkpoint stands after step 3."""
    codes = on_ranks(count, folder / "meeting", lambda ranks: run(folder, name, recipe, ranks, sharding, stop_after=5))
    assert codes == [-signal.SIGKILL, 1][:count], "the other rank ends by itself"
    assert [path.name for path in (folder / f"checkpoints {name}").glob("step-*")] == ["step-00000003.safetensors"]


def assert_close(one: dict[str, Any], other: dict[str, Any], tolerance: float) -> None:
    """Curves and weights; a tolerance of 0 asks for the same bits."""
    assert one["best"] == other["best"]
    ours, theirs = timeless(one["curves"]), timeless(other["curves"])
    assert [entry.keys() for entry in ours] == [entry.keys() for entry in theirs]
    for mine, its in zip(ours, theirs, strict=True):
        for name in mine:
            assert mine[name] == pytest.approx(its[name], rel=tolerance, abs=0), f"{name} of step {mine['step']}"
    for name, value in one["weights"].items():
        gap = (value.float() - other["weights"][name].float()).abs().max()
        assert gap <= tolerance, f"{name}: {gap:.1e}"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The training by one process."""
    return on(1, tmp_path_factory.mktemp("alone"), "on 1")


def test_one_pack_a_rank_gives_the_same_bits(tmp_path: Path, alone: dict[str, Any]) -> None:
    """The sum of two has one order, and a rank without a pack adds nothing to it."""
    two = on(2, tmp_path, "on 2")
    assert [entry["step"] for entry in two["curves"]] == two["told"]
    assert any("replayed_length" in entry for entry in two["curves"])
    assert two["packs"] % 2 == 1, "a rank has none in the last step"
    assert_close(two, alone, 0.0)


def test_more_packs_than_ranks_differ_by_the_order_of_sums(tmp_path: Path) -> None:
    """float32: 1e-5 of what the curves hold, and of weights that are about 1."""
    recipe = replace(RECIPE, packs_per_step=5, epochs=1)
    assert_close(on(2, tmp_path, "on 2", recipe), on(1, tmp_path, "on 1", recipe), 1e-5)


@pytest.mark.parametrize(
    ("before", "sharding_before", "after", "sharding_after", "tolerance"),
    [(2, "none", 1, "none", 0.0), (2, "fsdp", 1, "none", 1e-5), (1, "none", 2, "fsdp", 1e-5)],
)
def test_a_killed_training_goes_on_on_another_number_of_ranks(
    tmp_path: Path, alone: dict[str, Any], before: int, sharding_before: str, after: int, sharding_after: str, tolerance: float
) -> None:
    """In shards the gradient norm is a sum in another order: float32 again."""
    cut_short(before, tmp_path, "cut", sharding_before)
    resumed = on(after, tmp_path, "cut", sharding=sharding_after)
    assert resumed["told"][0] == 4, "it began anew"
    assert_close(resumed, alone, tolerance)


@pytest.mark.parametrize(("sharding", "tolerance"), [("none", 0.0), ("fsdp", 1e-3)])
def test_muon_is_shared_out_and_goes_on(tmp_path: Path, sharding: str, tolerance: float) -> None:
    """In shards its bfloat16 products are sums in another order."""
    recipe = replace(RECIPE, optimizer="muon")
    alone = on(1, tmp_path, "alone", recipe)
    cut_short(2, tmp_path, "cut", sharding, recipe)
    resumed = on(2, tmp_path, "cut", recipe, sharding)
    assert resumed["told"][0] == 4, "it began anew"
    assert_close(resumed, alone, tolerance)


def test_the_wait_that_is_told_is_that_of_the_rank_that_waited_longest(tmp_path: Path) -> None:
    recipe = replace(RECIPE, epochs=1)
    assert on_ranks(2, tmp_path / "meeting", lambda ranks: run(tmp_path, "slow", recipe, ranks, slow=1)) == [0, 0]
    first, *_ = torch.load(tmp_path / "slow.pt")["curves"]
    assert 0.1 <= first["loader_wait"] <= first["seconds"]


def test_numbers_and_items_of_ranks(tmp_path: Path) -> None:
    def work(ranks: Ranks) -> None:
        assert ranks.count == 3 and ranks.first == (ranks.number == 0)
        assert ranks.sums([0.1, ranks.number]) == [0.1 + 0.1 + 0.1, 3.0]
        assert ranks.largest([2.5, 7.0, 1.0][ranks.number]) == 7.0
        assert ranks.firsts({"loss": f"of {ranks.number}"}) == {"loss": "of 0"}
        assert list(ranks.share("abcde")) == [["a", "d"], ["b", "e"], ["c"]][ranks.number]
        ranks.wait()

    assert on_ranks(3, tmp_path / "meeting", work) == [0, 0, 0]
    one = Ranks("cpu")
    assert one.first and one.sums([1.5]) == [1.5] and one.largest(1.5) == 1.5 and list(one.share("ab")) == ["a", "b"]
