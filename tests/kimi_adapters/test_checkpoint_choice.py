import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kimi_adapters.acceptance_length import total
from kimi_adapters.checkpoint_choice import BestSoFar, CheckpointChoice, HeldOut
from kimi_adapters.draft import draft_config_values
from kimi_adapters.draft_runner import DraftRunner
from kimi_adapters.packing import PackedShards, Shard
from kimi_adapters.process_group import Ranks
from kimi_adapters.recipe import Recipe
from kimi_adapters.replay import walk_shards
from kimi_adapters.trainer import TrainResult, train
from kimi_adapters.training_checkpoint import load_checkpoint
from tests.kimi_adapters.draft_fixtures import LAYER_IDS, VERIFIER, VOCABULARY, learnable_shard, samples, timeless, write_shard
from tests.kimi_adapters.draft_models import tiny_draft, tiny_rows

RECIPE = Recipe(epochs=3, pack_tokens=48, lr=1e-2, noise=0.05, replay_every_steps=4)
LEFT_OUT = {0: [4], 1: []}


def packed(directory: Path, left_out: dict[int, list[int]] | None = None) -> PackedShards:
    files = [learnable_shard(directory / str(i), 10, seed=i) for i in range(2)]
    return PackedShards(files, LAYER_IDS, 48, 3, 0, left_out, noise=RECIPE.noise)


def run(directory: Path, recipe: Recipe, data: PackedShards | None = None, **options: Any) -> TrainResult:
    data = data or packed(directory)
    checkpoints = directory / "checkpoints"
    return train(recipe, data, VERIFIER, tiny_rows(), VOCABULARY, checkpoints, lambda entry: None, **options)


def replays(result: TrainResult) -> dict[int, float]:
    return {int(e["step"]): e["replayed_length"] for e in result.curves if "replayed_length" in e}


def test_the_draft_is_that_of_the_best_replay_and_replays_change_no_step(tmp_path: Path) -> None:
    result = run(tmp_path / "a", RECIPE)
    found = replays(result)
    steps = len(result.curves)
    assert sorted(found) == sorted({*range(4, steps + 1, 4), steps}), "every four steps and at the end"
    assert len(set(found.values())) > 1, "the replay tells the steps apart"
    assert result.replayed_length == max(found.values()) > 1
    assert result.best_step == min(step for step, length in found.items() if length == result.replayed_length)
    blind = run(tmp_path / "b", replace(RECIPE, replay_every_steps=0))
    assert not replays(blind) and (blind.best_step, blind.replayed_length) == (steps, None)
    without = [{name: value for name, value in entry.items() if name != "replayed_length"} for entry in result.curves]
    assert timeless(blind.curves) == timeless(without)


def test_the_weights_are_the_best_steps_own(tmp_path: Path) -> None:
    """Its replay gives the length that was told, over exactly the held-out samples that validation left."""
    data = packed(tmp_path / "a", LEFT_OUT)
    result = run(tmp_path / "a", replace(RECIPE, replay_samples=100), data)
    runner = DraftRunner(draft_config_values(result.model.config, torch.float32), result.model.state_dict())
    files = [learnable_shard(tmp_path / "again" / str(i), 10, seed=i) for i in range(2)]
    walked = [one for _, _, one in walk_shards(runner, files, RECIPE.ttt_steps, LEFT_OUT)]
    assert len(walked) == result.replayed_samples == 3
    assert total(walked, RECIPE.ttt_steps).length == result.replayed_length


def test_an_earlier_step_than_the_last_is_taken_bit_for_bit(tmp_path: Path) -> None:
    """A rate that ruins the draft: the weights are those of a run that was cut at the best step."""
    recipe = replace(RECIPE, lr=0.3, scheduler="none", replay_every_steps=2, patience=2)
    result = run(tmp_path / "a", recipe)
    assert result.best_step < len(result.curves)

    def stop(entry: dict[str, Any]) -> None:
        if entry["step"] == result.best_step + 1:
            raise KeyboardInterrupt

    every = replace(recipe, checkpoint_every_steps=1)
    with pytest.raises(KeyboardInterrupt):
        train(every, packed(tmp_path / "b"), VERIFIER, tiny_rows(), VOCABULARY, tmp_path / "b/c", stop)
    cut = load_checkpoint(tmp_path / "b/c")
    assert cut is not None and cut.step == result.best_step
    seen = {name.removeprefix("weight."): value for name, value in cut.tensors.items() if name.startswith("weight.")}
    state = result.model.state_dict()
    assert seen and all(torch.equal(state[name], value) for name, value in seen.items())


def test_patience_ends_the_run(tmp_path: Path) -> None:
    recipe = replace(RECIPE, lr=0.3, scheduler="none", replay_every_steps=2, patience=2)
    result = run(tmp_path / "a", recipe)
    found = list(replays(result).items())
    best = max(length for _, length in found)
    assert len(result.curves) == found[-1][0] == result.best_step + 4
    assert best == result.replayed_length and found[-3][1] == best
    endless = run(tmp_path / "b", replace(recipe, patience=None))
    assert len(endless.curves) > len(result.curves)
    assert timeless(endless.curves[: len(result.curves)]) == timeless(result.curves)


def test_the_recipe_says_how_many_samples_choose_the_draft(tmp_path: Path) -> None:
    choice = CheckpointChoice(replace(RECIPE, replay_samples=2, ttt_steps=2), packed(tmp_path), 10, {}, Ranks("cpu"))
    assert (len(choice.held_out.samples), choice.held_out.k) == (2, 2)


@pytest.mark.parametrize("bound", [1, 2, 3, 16])
def test_samples_are_spread_over_the_shards_and_bounded(tmp_path: Path, bound: int) -> None:
    files = [write_shard(tmp_path / str(i), samples(10, seed=i)) for i in range(4)]
    shards = [Shard(one, LAYER_IDS) for one in files]
    chosen = HeldOut(shards, {1: [9]}, bound, 3).samples
    places = [(shards.index(shard), sample) for shard, sample in chosen]
    usable = [(0, 4), (0, 9), (1, 4), (2, 4), (2, 9), (3, 4), (3, 9)]
    assert places == [usable[i * 7 // min(bound, 7)] for i in range(min(bound, 7))]


def test_answers_that_propose_nothing_are_not_chosen(tmp_path: Path) -> None:
    made = [([1, 2, 3, 4], mask, "held_out") for mask in ([0, 0, 0, 1], [1, 1, 1, 1], [0, 1, 0, 1], [0, 0, 1, 1], [1, 0, 1, 1])]
    shard = Shard(write_shard(tmp_path, made), LAYER_IDS)
    held_out = HeldOut([shard], {}, 16, 3)
    assert [sample for _, sample in held_out.samples] == [3, 4]
    model = tiny_draft()
    length = held_out.length(draft_config_values(model.config, torch.float32), model.state_dict())
    assert 1 <= length <= 4 and math.isfinite(length)


def test_of_equal_replays_the_earlier_stays() -> None:
    best = BestSoFar()
    for step, length in ((1, 1.5), (2, 1.5), (3, 1.25), (4, 2.0)):
        best.take(step, length, {"a": torch.tensor(float(step))})
        assert (best.step, best.waited) == {1: (1, 0), 2: (1, 1), 3: (1, 2), 4: (4, 0)}[step]
    again = BestSoFar.restored(best.state(), best.stored() | {"weight.a": torch.zeros(())})
    assert again == best and float(again.tensors["a"]) == 4.0
