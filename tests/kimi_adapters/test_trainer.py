import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from speculators.losses import resolve_loss_config
from speculators.train.trainer import Trainer

from errors import ToldToStop, UserError
from kimi_adapters.draft import build_draft, draft_config, trainable_state
from kimi_adapters.packing import PackedShards
from kimi_adapters.recipe import Recipe
from kimi_adapters.trainer import TrainResult, train
from kimi_adapters.training_checkpoint import load_checkpoint
from kimi_adapters.training_loop import DraftTrainer
from tests.kimi_adapters.draft_fixtures import LAYER_IDS, VERIFIER, VOCABULARY, samples, timeless, write_shard
from tests.kimi_adapters.draft_models import tiny_draft, tiny_rows
from tests.kimi_adapters.rank_processes import in_a_child

RECIPE = Recipe(epochs=3, pack_tokens=48, lr=3e-3, warmup_ratio=0.2, noise=0.05, checkpoint_every_steps=4)


def data(directory: Path, recipe: Recipe = RECIPE, count: int = 20) -> PackedShards:
    files = [write_shard(directory / str(i), samples(count, seed=i)) for i in range(2)]
    return PackedShards(files, LAYER_IDS, recipe.pack_tokens, recipe.ttt_steps, recipe.seed, noise=recipe.noise)


def run(
    shards: PackedShards,
    checkpoints: Path,
    recipe: Recipe = RECIPE,
    progress: Callable[[dict[str, Any]], None] = lambda entry: None,
    **options: Any,
) -> TrainResult:
    return train(recipe, shards, VERIFIER, tiny_rows(), VOCABULARY, checkpoints, progress, **options)


def weights(result: TrainResult) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in result.model.state_dict().items()}


def assert_same(one: TrainResult, other: TrainResult) -> None:
    assert timeless(one.curves) == timeless(other.curves)
    assert (one.best_step, one.replayed_length) == (other.best_step, other.replayed_length)
    ours, theirs = weights(one), weights(other)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert all(torch.equal(one.initial[name], other.initial[name]) for name in one.initial)


@pytest.mark.parametrize("scheduler", ["cosine", "linear", "none"])
def test_the_learning_rate_goes_by_steps_over_all_epochs(tmp_path: Path, scheduler: str) -> None:
    recipe = replace(RECIPE, scheduler=scheduler, warmup_ratio=0.0 if scheduler == "none" else 0.2)
    result = run(data(tmp_path), tmp_path / "c", recipe)
    lrs = [entry["lr"] for entry in result.curves]
    assert [entry["step"] for entry in result.curves] == list(range(1, len(lrs) + 1))
    assert sorted({entry["epoch"] for entry in result.curves}) == [0, 1, 2]
    warmup = int(len(lrs) * 0.2)
    if scheduler == "none":
        assert set(lrs) == {3e-3}
        return
    assert lrs[: warmup + 1] == pytest.approx([3e-3 * i / warmup for i in range(warmup + 1)])
    assert all(a > b for a, b in zip(lrs[warmup:], lrs[warmup + 1 :], strict=False))
    assert 0 < lrs[-1] < 3e-3 * 0.1


def _killed_after(step: int, directory: Path, recipe: Recipe) -> None:
    """Trains in a real child process that is SIGKILLed while it computes the step after `step`."""

    def progress(entry: dict[str, Any]) -> None:
        if entry["step"] == step:
            os.kill(os.getpid(), signal.SIGKILL)

    def child() -> None:
        run(data(directory, recipe), directory / "killed", recipe, progress)

    assert in_a_child(child) == -signal.SIGKILL


@pytest.mark.parametrize(
    "recipe",
    [
        RECIPE,
        replace(RECIPE, packs_per_step=2, scheduler="linear", num_layers=2, checkpoint_every_steps=3),
        replace(RECIPE, scheduler="none", warmup_ratio=None, noise=0.0),
        replace(RECIPE, replay_every_steps=3, patience=2, epochs=9),
    ],
    ids=["cosine", "linear, two packs a step, two layers", "none", "patience"],
)
def test_killed_and_resumed_it_takes_the_same_rates_and_gives_the_same_bits(tmp_path: Path, recipe: Recipe) -> None:
    torch.set_num_threads(1)  # as the children have it
    whole = run(data(tmp_path, recipe), tmp_path / "whole", recipe)
    for step in (2, 7, len(whole.curves) - 1):  # before the first checkpoint, between two, after the last
        _killed_after(step, tmp_path, recipe)
    seen: list[int] = []
    resumed = run(data(tmp_path, recipe), tmp_path / "killed", recipe, lambda entry: seen.append(entry["step"]))
    assert_same(resumed, whole)
    assert seen[0] > 2, "it began anew"
    assert_same(run(data(tmp_path, recipe), tmp_path / "killed", recipe), whole)


def test_told_to_stop_it_leaves_a_checkpoint_and_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    shards = data(tmp_path)
    whole = run(shards, tmp_path / "whole")
    asked = iter([False, False, True])  # between the third and the fourth step, where no checkpoint is due
    with pytest.raises(ToldToStop, match=f"stopped after step 3 of {len(whole.curves)}"):
        run(shards, tmp_path / "stopped", should_stop=lambda: next(asked))
    left = load_checkpoint(tmp_path / "stopped")
    torch.manual_seed(99)
    seen: list[int] = []
    resumed = run(shards, tmp_path / "stopped", progress=lambda entry: seen.append(entry["step"]), should_stop=lambda: False)
    assert seen[0] == 4 and left and torch.equal(torch.get_rng_state(), left.tensors["rng"])
    assert_same(resumed, whole)
    at_the_end = run(shards, tmp_path / "whole", should_stop=lambda: True)
    assert_same(at_the_end, whole)  # what is done is not stopped


def test_it_learns_and_leaves_the_verifiers_rows_alone(tmp_path: Path) -> None:
    recipe = replace(RECIPE, epochs=12, noise=0.0)
    result = run(data(tmp_path, count=10), tmp_path / "c", recipe)
    first, last = result.curves[0], result.curves[-1]
    assert last["loss"] < 0.7 * first["loss"] and last["acc_0"] > first["acc_0"]
    assert 1 >= last["acc_0"] >= last["acc_1"] >= last["acc_2"] >= 0
    rows, state = tiny_rows(), result.model.state_dict()
    for name, expected in (("embed_tokens", rows.embed), ("lm_head", rows.lm_head), ("verifier_norm", rows.norm)):
        assert torch.equal(state[f"{name}.weight"], expected)
    assert not any(torch.equal(state[name], start) for name, start in result.initial.items())
    assert not result.model.training


def test_progress_tells_every_step_of_how_many(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    result = run(data(tmp_path), tmp_path / "c", progress=told.append)
    assert [entry["step"] for entry in told] == [entry["step"] for entry in result.curves]
    assert {entry["total_steps"] for entry in told} == {len(result.curves)}
    assert {"lr", "loss", "acc_0", "acc_1", "acc_2", "grad_norm", "tokens", "seconds"} <= told[0].keys()


def test_a_step_over_many_packs_is_that_of_one_pack_with_all_their_documents(tmp_path: Path) -> None:
    """Loss, gradient norm and weights: each supervised token weighs the same, however unevenly the packs hold them."""
    files = [write_shard(tmp_path / str(i), samples(7, seed=i, answer=20 - 12 * i)) for i in range(2)]
    recipe = replace(RECIPE, epochs=1, noise=0.0, warmup_ratio=0.0, packs_per_step=50, replay_every_steps=0)
    results = []
    for length in (48, 480):
        chosen = replace(recipe, pack_tokens=length)
        shards = PackedShards(files, LAYER_IDS, length, chosen.ttt_steps, chosen.seed)
        results.append(run(shards, tmp_path / f"c{length}", chosen))
        counts = [sum(piece.supervised for piece in pack) for pack in shards.packs(0)]
        assert len(set(counts)) > 1 if length == 48 else len(counts) == 1
    many, one = results
    assert len(many.curves) == len(one.curves) == 1 and many.curves[0]["tokens"] == one.curves[0]["tokens"]
    for name in ("loss", "grad_norm", "acc_0", "acc_2"):
        assert many.curves[0][name] == pytest.approx(one.curves[0][name], rel=1e-5)
    ours, theirs = weights(many), weights(one)
    assert all(torch.allclose(ours[name].float(), theirs[name].float(), atol=1e-5) for name in ours)


def test_a_step_is_adamws_by_the_recipes_numbers(tmp_path: Path) -> None:
    """Loss, TTT steps and decay, clipping, rate and weight decay, beside speculators' forward and torch's AdamW."""
    recipe = replace(
        RECIPE, epochs=1, noise=0.0, scheduler="none", warmup_ratio=None, pack_tokens=480, replay_every_steps=0,
        loss="ce", ttt_steps=2, ttt_decay=0.5, grad_clip=0.01, lr=1e-2, weight_decay=0.5, norm_output=True,
    )  # fmt: skip
    shards = data(tmp_path, recipe, count=4)
    (pack,) = shards.packs(0)
    result = run(shards, tmp_path / "c", recipe)
    config = draft_config(recipe, VERIFIER, LAYER_IDS, VOCABULARY.size, "sdpa")
    model = build_draft(config, tiny_rows(), VOCABULARY, recipe.seed)
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    optimizer = torch.optim.AdamW(trained.values(), lr=1e-2, weight_decay=0.5)
    loss_config = resolve_loss_config("ce", "eager")
    loss = model(**shards.load(pack), ttt_steps=2, ttt_step_loss_decay=0.5, loss_config=loss_config)[1]
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(trained.values(), 0.01)
    optimizer.step()
    assert result.curves[0]["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert result.curves[0]["grad_norm"] == pytest.approx(norm.item(), rel=1e-5) and norm > 0.1, "it is clipped"
    checkpoint = load_checkpoint(tmp_path / "c")
    assert checkpoint
    for name, value in trained.items():
        torch.testing.assert_close(checkpoint.tensors[f"weight.{name}"], value.detach(), rtol=1e-4, atol=1e-6)
        expected = optimizer.state[value]["exp_avg"]
        torch.testing.assert_close(checkpoint.tensors[f"exp_avg.{name}"], expected, rtol=1e-4, atol=1e-9)


def test_a_pieces_count_is_that_of_the_mask_it_is_loaded_with(tmp_path: Path) -> None:
    shards = data(tmp_path, replace(RECIPE, pack_tokens=16))
    assert any(piece.start for piece in shards.pieces), "one sample is cut"
    for pack in shards.packs(0):
        assert int(shards.load(pack)["loss_mask"].sum()) == sum(piece.supervised for piece in pack)


def test_checkpoints_of_another_recipe_data_or_start_are_refused(tmp_path: Path) -> None:
    run(data(tmp_path), tmp_path / "c")
    with pytest.raises(UserError, match="another recipe, start or data"):
        run(data(tmp_path), tmp_path / "c", replace(RECIPE, lr=1e-3))
    with pytest.raises(UserError, match="another recipe, start or data"):
        run(data(tmp_path / "more", count=25), tmp_path / "c")
    with pytest.raises(UserError, match="another recipe, start or data"):
        run(data(tmp_path), tmp_path / "c", parent={"norm.weight": torch.ones(32) * 2})


def test_a_loss_that_is_not_finite_stops_the_run_before_it_is_learned(tmp_path: Path) -> None:
    parent = {"norm.weight": torch.full((32,), 1e38)}
    with pytest.raises(UserError, match="not finite at step 1"):
        run(data(tmp_path), tmp_path / "c", parent=parent)
    assert not list((tmp_path / "c").glob("step-*"))


def test_a_parent_draft_is_where_training_starts(tmp_path: Path) -> None:
    first = run(data(tmp_path), tmp_path / "a")
    parent = weights(first)
    second = run(data(tmp_path), tmp_path / "b", parent=parent)
    assert all(torch.equal(second.initial[name], parent[name]) for name in second.initial)
    assert second.curves[0]["loss"] < first.curves[0]["loss"]


def test_the_fusing_layer_begins_as_the_recipe_says(tmp_path: Path) -> None:
    recipe = replace(RECIPE, epochs=1, replay_every_steps=0)
    starts = [
        run(data(tmp_path), tmp_path / start, replace(recipe, fc_start=start)).initial["fc.weight"]
        for start in ("random", "last")
    ]
    size = len(starts[0])
    torch.testing.assert_close(starts[1][:, -size:] - 0.1 * starts[0][:, -size:], torch.eye(size))


def test_head_and_embeddings_learn_where_asked_and_are_checkpointed(tmp_path: Path) -> None:
    recipe = replace(RECIPE, train_lm_head=True, train_embeddings=True, epochs=1, noise=0.0, replay_every_steps=0)
    result, rows = run(data(tmp_path, count=6), tmp_path / "c", recipe), tiny_rows()
    own = {"lm_head.weight": rows.lm_head, "embed_tokens.weight": rows.embed}
    state = weights(result)
    for name, verifiers in own.items():
        assert torch.equal(result.initial[name], verifiers) and not torch.equal(state[name], verifiers)
    assert torch.equal(state["verifier_lm_head.weight"], rows.lm_head), "what it is trained against stays"
    checkpoint = load_checkpoint(tmp_path / "c")
    stored = checkpoint.tensors if checkpoint else {}
    assert {value.dtype for name, value in stored.items() if name.startswith(("weight", "exp_avg", "step"))} == {torch.float32}
    assert all(f"{kind}.{name}" in stored for name in own for kind in ("weight", "exp_avg"))
    assert_same(run(data(tmp_path, count=6), tmp_path / "c", recipe), result)
    for alone in (Recipe(train_lm_head=True), Recipe(train_embeddings=True)):
        assert len(own.keys() & trainable_state(tiny_draft(alone)).keys()) == 1


def test_the_loop_is_speculators_trainers_with_its_methods_replaced_whole() -> None:
    assert issubclass(DraftTrainer, Trainer)
    broken_on_cpu = {"setup_trainer", "setup_model", "setup_optimizer", "train_epoch", "run_training", "maybe_save_checkpoint"}
    assert broken_on_cpu <= vars(DraftTrainer).keys()
