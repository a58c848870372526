"""Going on under other code, another recipe or other data from a checkpoint that was made before the change."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from errors import UserError
from kimi_adapters.packing import PackedShards
from kimi_adapters.recipe import Recipe
from kimi_adapters.trainer import TrainResult, train
from tests.kimi_adapters.draft_fixtures import LAYER_IDS, VERIFIER, VOCABULARY, learnable_shard, timeless
from tests.kimi_adapters.draft_models import tiny_rows

RECIPE = Recipe(epochs=2, pack_tokens=48, lr=1e-2, replay_every_steps=4, checkpoint_every_steps=5)


def run(directory: Path, recipe: Recipe, checkpoints: str, stop_after: int = 0, **options: Any) -> TrainResult:
    files = [learnable_shard(directory / str(i), 10, seed=i) for i in range(2)]
    data = PackedShards(files, LAYER_IDS, 48, recipe.ttt_steps, recipe.seed)

    def progress(entry: dict[str, Any]) -> None:
        if entry["step"] == stop_after:
            raise KeyboardInterrupt

    return train(recipe, data, VERIFIER, tiny_rows(), VOCABULARY, directory / checkpoints, progress, **options)


def cut_short(directory: Path) -> Path:
    """A training that died after step 7; its newest checkpoint stands after step 5."""
    with pytest.raises(KeyboardInterrupt):
        run(directory, RECIPE, "old", stop_after=7)
    (checkpoint,) = (directory / "old").glob("step-*")
    assert checkpoint.name == "step-00000005.safetensors"
    return checkpoint


def test_an_unchanged_recipe_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    """Another patience that never ends it: only the identity differs, and so the schedule is computed anew."""
    whole = run(tmp_path, RECIPE, "whole")
    other = replace(RECIPE, patience=99)
    result = run(tmp_path, other, "new", continue_from=cut_short(tmp_path))
    assert result.continued_at == 5 and whole.continued_at is None
    assert timeless(result.curves) == timeless(whole.curves)
    ours, theirs = result.model.state_dict(), whole.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    again = run(tmp_path, other, "new", continue_from=tmp_path / "gone")  # its own checkpoint comes first
    assert again.continued_at == 5 and timeless(again.curves) == timeless(result.curves)


def test_how_often_it_is_saved_makes_no_other_training(tmp_path: Path) -> None:
    whole = run(tmp_path, RECIPE, "whole")
    cut_short(tmp_path)
    resumed = run(tmp_path, replace(RECIPE, checkpoint_every_steps=2), "old", stop_after=1)  # it begins after step 5
    assert timeless(resumed.curves) == timeless(whole.curves) and resumed.continued_at is None
    ours, theirs = resumed.model.state_dict(), whole.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_new_recipe_has_its_own_rates_from_there_on(tmp_path: Path) -> None:
    checkpoint = cut_short(tmp_path)
    recipe = replace(RECIPE, lr=1e-3, scheduler="linear", warmup_ratio=0.0, epochs=3)
    result = run(tmp_path, recipe, "new", continue_from=checkpoint)
    steps = len(result.curves)
    rates = [entry["lr"] for entry in result.curves]
    assert rates[5:] == pytest.approx([1e-3 * (steps - done) / steps for done in range(5, steps)])
    assert max(rates[:5]) == pytest.approx(1e-2)
    assert result.replayed_length == max(e["replayed_length"] for e in result.curves if "replayed_length" in e)


def test_what_cannot_be_gone_on_from_is_refused(tmp_path: Path) -> None:
    checkpoint = cut_short(tmp_path)
    with pytest.raises(UserError, match="another shape"):
        run(tmp_path, replace(RECIPE, intermediate_size=64), "a", continue_from=checkpoint)
    with pytest.raises(UserError, match="raise training.epochs"):
        run(tmp_path, replace(RECIPE, epochs=1, packs_per_step=4), "b", continue_from=checkpoint)
    stray = tmp_path / "step-00000009.safetensors"
    stray.write_bytes(b"torn")
    with pytest.raises(UserError, match="step-00000009"):
        run(tmp_path, RECIPE, "c", continue_from=stray)
