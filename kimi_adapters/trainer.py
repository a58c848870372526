"""Training a draft: from a recipe, packs and a verifier's rows to the weights that accepted most."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from speculators.models.eagle3 import Eagle3DraftModel
from torch import Tensor

from kimi_adapters.config import TextConfig
from kimi_adapters.draft import VerifierRows, build_draft, copy_tensors, draft_config
from kimi_adapters.draft_vocabulary import DraftVocabulary
from kimi_adapters.packing import PackedShards
from kimi_adapters.process_group import Ranks
from kimi_adapters.recipe import Recipe
from kimi_adapters.training_choices import choose
from kimi_adapters.training_loop import Curves, DraftTrainer

Progress = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class TrainResult:
    """`model`: the draft of `best_step`, in evaluation mode, on its device. `initial`: the trainable tensors before the
    first step, on CPU.

    `curves`: a dict a step: step (from 1), epoch, lr, loss, grad_norm, acc_0 … (share of supervised tokens whose chain
    was right up to that step, within the draft vocabulary), tokens (supervised), tokens_per_s (all but padding, without
    the time of replays), seconds, loader_wait (those in which packs were waited for, of the rank that waited longest),
    loader_reading (those in which the first rank's threads read from the files), loader_bytes (of states, by that rank),
    and, where a replay followed the step, replayed_length.
    `choices`: what was decided by the device's capability, and why. `replayed_length`: that of `best_step`; None where
    nothing was replayed, and the last step is it. `continued_at`: the step of the other training's checkpoint that this one
    went on from.
    """

    model: Eagle3DraftModel
    initial: dict[str, Tensor]
    curves: Curves
    choices: dict[str, str]
    best_step: int
    replayed_length: float | None
    replayed_samples: int
    continued_at: int | None = None


def train(
    recipe: Recipe,
    data: PackedShards,
    verifier: TextConfig,
    rows: VerifierRows,
    vocabulary: DraftVocabulary,
    checkpoint_dir: Path,
    progress: Progress,
    ranks: Ranks | None = None,
    sharding: str = "none",
    parent: Mapping[str, Tensor] | None = None,
    verifier_name: str | None = None,
    continue_from: Path | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    on_choices: Callable[[dict[str, str]], None] = lambda choices: None,
) -> TrainResult:
    """Trains a draft from the recipe, or goes on from the newest checkpoint in `checkpoint_dir`.

    Where that has none, `continue_from` is the checkpoint to go on from, that of other code, recipe or data: weights,
    optimizer, random state and step count are its own, the learning rate is this recipe's at that step.

    Of several `ranks` all call this, each with all of `data`; they may be as many as they like, before and after a
    checkpoint. `sharding` none keeps a replica on each, fsdp a share of the trained tensors. The result is whole on the
    first rank alone.
    `on_choices` gets the result's `choices` before anything is built, `progress` {step, total_steps, and the step's entry of
    the curves} after every step: both on the first rank.
    `parent` holds the tensors of a draft to start from. UserError: shapes that do not fit, states or a loss that are not
    finite, a checkpoint of another recipe, start or data. ToldToStop: `should_stop` was true between two steps; a
    checkpoint of the last one lies in `checkpoint_dir`.
    """
    ranks = ranks or Ranks("cpu")
    choices = ranks.firsts(choose(recipe, ranks.device))
    if ranks.first:
        on_choices(choices)
    config = draft_config(recipe, verifier, data.layer_ids, vocabulary.size, choices["attention"], verifier_name=verifier_name)
    build = partial(build_draft, config, rows, vocabulary, recipe.seed, parent, recipe.train_lm_head, recipe.fc_start)
    trainer = DraftTrainer(
        build(), recipe, data, checkpoint_dir, progress, ranks, choices, sharding, continue_from, should_stop
    )
    trainer.run_training()
    best = trainer.choice.best
    model = trainer.model if ranks.count == 1 else build()  # the trained one may be in shards
    copy_tensors(model, best.tensors if best.step else trainer.last, "The best step")
    return TrainResult(
        model.eval(),
        trainer.initial,
        trainer.curves,
        choices,
        best_step=best.step or trainer.global_step,
        replayed_length=best.length if best.step else None,
        replayed_samples=len(trainer.choice.held_out.samples),
        continued_at=trainer.continued_at,
    )
