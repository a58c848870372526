"""Training a draft: speculators' Trainer with its device, data, schedule, checkpoints and loop replaced whole.

What is replaced and why: the published Trainer moves the model to device 0 and synchronizes an accelerator that a
CPU does not have; saves the optimizer in bfloat16, its step counter too; gives a resumed schedule the epoch where it
counts steps; and ends an epoch, not the run, at `max_steps`. Here a step is the unit everywhere, and a run that is
killed and resumed takes the same learning rates and, in float32 on a CPU, arrives at the same bits.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from speculators.model import SpeculatorModel
from speculators.models.eagle3 import Eagle3DraftModel
from speculators.train.trainer import Trainer, TrainerConfig
from torch import Tensor

from errors import UserError
from kimi_adapters.checkpoint_choice import BestSoFar, CheckpointChoice
from kimi_adapters.config import TextConfig
from kimi_adapters.data_parallel import gradients, over_ranks, whole, whole_tensors
from kimi_adapters.draft import (
    VerifierRows,
    build_draft,
    copy_tensors,
    draft_config,
    draft_config_values,
    trainable_state,
)
from kimi_adapters.draft_vocabulary import DraftVocabulary
from kimi_adapters.epoch_packs import EpochPacks, shares
from kimi_adapters.pack_loss import PackLoss
from kimi_adapters.packing import Batch, PackedShards, Piece
from kimi_adapters.process_group import Ranks
from kimi_adapters.recipe import Recipe
from kimi_adapters.training_checkpoint import (
    TrainingCheckpoint,
    continued_checkpoint,
    json_state,
    load_checkpoint,
    optimizer_tensors,
    restore_optimizer,
    save_checkpoint,
)
from kimi_adapters.training_choices import choose
from kimi_adapters.training_state import identity, random_state, restore_random_state, restore_schedules, schedules

Progress = Callable[[dict[str, Any]], None]
Curves = list[dict[str, float]]


@dataclass(frozen=True)
class TrainResult:
    """`model`: the draft of `best_step`, in evaluation mode, on its device. `initial`: the trainable tensors before the
    first step, on CPU.

    `curves`: a dict a step: step (from 1), epoch, lr, loss, grad_norm, acc_0 … (share of supervised tokens whose chain
    was right up to that step, within the draft vocabulary), tokens (supervised), tokens_per_s (all but padding, without
    the time of replays), and, where a replay followed the step, replayed_length. `choices`: what was decided by the
    device's capability. `replayed_length`: that of `best_step`; None where nothing was replayed, and the last step is
    it. `continued_at`: the step of the other training's checkpoint that this one went on from.
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
) -> TrainResult:
    """Trains a draft from the recipe, or goes on from the newest checkpoint in `checkpoint_dir`.

    Where that has none, `continue_from` is the checkpoint to go on from, that of other code, recipe or data: weights,
    optimizer, random state and step count are its own, the learning rate is this recipe's at that step.

    Of several `ranks` all call this, each with all of `data`; they may be as many as they like, before and after a
    checkpoint. `sharding` none keeps a replica on each, fsdp a share of the trained tensors. The result is whole on the
    first rank alone.
    `progress` gets {step, total_steps, and the step's entry of the curves} after every step, on the first rank.
    `parent` holds the tensors of a draft to start from. UserError: shapes that do not fit, states or a loss that are not
    finite, a checkpoint of another recipe, start or data.
    """
    ranks = ranks or Ranks("cpu")
    choices = ranks.firsts(choose(recipe, ranks.device))
    config = draft_config(recipe, verifier, data.layer_ids, vocabulary.size, choices["attention"], verifier_name=verifier_name)
    model = build_draft(config, rows, vocabulary, recipe.seed, parent)
    trainer = DraftTrainer(model, recipe, data, checkpoint_dir, progress, ranks, choices, sharding, continue_from)
    trainer.run_training()
    best = trainer.choice.best
    if ranks.count > 1:  # the trained one may be in shards
        model = build_draft(config, rows, vocabulary, recipe.seed, parent)
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


class DraftTrainer(Trainer):
    """Runs a recipe over packs. `curves` grows by a step; `initial` holds the trainable tensors before any, `last` those
    after the last step, on the first rank."""

    def __init__(
        self,
        model: Eagle3DraftModel,
        recipe: Recipe,
        data: PackedShards,
        checkpoint_dir: Path,
        progress: Progress,
        ranks: Ranks,
        choices: Mapping[str, str],
        sharding: str = "none",
        continue_from: Path | None = None,
    ):
        self.recipe, self.data, self.progress = recipe, data, progress
        self.ranks, self.device, self.sharding = ranks, ranks.device, sharding
        self.checkpoint_dir, self.continue_from = checkpoint_dir, continue_from
        self.continued_at: int | None = None
        self.packs = EpochPacks(data, recipe.packs_per_step)
        self.steps_by_epoch = [len(self.packs.steps(epoch)) for epoch in range(recipe.epochs)]
        self.total_steps = sum(self.steps_by_epoch)
        self.pack_loss = PackLoss(model, recipe, choices)
        self.curves: Curves = []
        self.last: dict[str, Tensor] = {}
        self.global_step = 0
        config_values = draft_config_values(model.config, torch.float32)
        self.choice = CheckpointChoice(recipe, data, self.total_steps, config_values, ranks)
        config = TrainerConfig(
            lr=recipe.lr,
            num_epochs=recipe.epochs,
            save_path=str(checkpoint_dir),
            weight_decay=recipe.weight_decay,
            scheduler_type=recipe.scheduler,
            scheduler_total_steps=self.total_steps,
            hidden_states_dtype=torch.float32 if self.device.type == "cpu" else torch.bfloat16,
        )
        super().__init__(model, config, self.packs)

    def setup_trainer(self) -> None:
        """The device, the start, and the checkpoint to go on from, if it is this run's."""
        self.local_rank = self.device
        self.device_type = self.device.type
        self.initial = trainable_state(self.model)
        self.identity = identity(self.recipe, self.data, self.steps_by_epoch, self.initial)
        self.resumed = load_checkpoint(self.checkpoint_dir)
        if self.resumed and self.resumed.state["identity"] != self.identity:
            raise UserError(
                f"{self.checkpoint_dir} holds checkpoints of another recipe, start or data; give an empty directory."
            )
        if self.resumed:
            self.continued_at = self.resumed.state["continued_at"]
        elif self.continue_from:
            self.resumed = continued_checkpoint(self.continue_from, self.initial, self.total_steps)
            self.continued_at = self.resumed.step

    def setup_model(self) -> None:
        """Moves the model to the device and over the ranks; its tensors become the checkpoint's, where there is one."""
        SpeculatorModel.verify_training_compatible(self.model)
        self.model.to(self.device)
        if self.resumed:
            copy_tensors(self.model, {name: self.resumed.tensors[f"weight.{name}"] for name in self.initial}, "The checkpoint")
        self.ranks.wait()
        self.shared_loss = over_ranks(self.pack_loss, self.ranks, self.sharding)
        named = dict(self.model.named_parameters())
        self.trainable = {name: named[name] for name in self.initial}

    def setup_optimizer(self) -> None:
        """AdamW over the trained tensors and a schedule that counts steps, both as the checkpoint has them."""
        recipe = self.recipe
        optimizer = torch.optim.AdamW(self.trainable.values(), lr=recipe.lr, weight_decay=recipe.weight_decay, fused=True)
        self.optimizers, self.schedulers = [optimizer], schedules(optimizer, recipe, self.total_steps)
        if self.resumed:
            self._restore(optimizer, self.resumed)

    def run_training(self) -> None:
        """All epochs from where the run stands, or until patience ends; a checkpoint is left at the end too."""
        self.model.train()
        done = 0
        for epoch, steps in enumerate(self.steps_by_epoch):
            if self.global_step < done + steps:
                self.train_epoch(epoch, skip=self.global_step - done)
            done += steps
        self.last = whole_tensors(self.trainable, self.ranks)

    def train_epoch(self, epoch: int, skip: int = 0) -> None:
        """The epoch's steps after the first `skip`."""
        for number, packs in enumerate(self.packs.steps(epoch)):
            if number < skip:
                continue
            if self.choice.over:
                return
            started = time.monotonic()
            entry = {"step": self.global_step + 1, "epoch": epoch, **self._step(packs, (epoch, number))}
            self.global_step += 1
            seconds = time.monotonic() - started
            entry["tokens_per_s"] = sum(len(piece) for pack in packs for piece in pack) / seconds
            self.curves.append(entry)
            if self.choice.due(self.global_step):
                entry["replayed_length"] = self.choice.judge(self.global_step, self._tensors(), self.trainable)
            if self.ranks.first:
                self.progress({**entry, "total_steps": self.total_steps, "seconds": seconds})
            self.maybe_save_checkpoint(epoch)

    def maybe_save_checkpoint(self, epoch: int | str, local_step: int = 0) -> None:
        """Saves at every `checkpoint_every_steps` and at the end: whole tensors, by the first rank while the others wait."""
        last = self.global_step == self.total_steps or self.choice.over
        if self.global_step % self.recipe.checkpoint_every_steps and not last:
            return
        trained = {f"weight.{name}": parameter for name, parameter in self.trainable.items()}
        tensors = whole_tensors(trained | optimizer_tensors(self.optimizers[0], self.trainable), self.ranks)
        tensors |= self.choice.best.stored() | random_state(self.device)
        state = {
            "identity": self.identity,
            "epoch": epoch,
            "schedulers": [scheduler.state_dict() for scheduler in self.schedulers],
            "curves": self.curves,
            "best": self.choice.best.state(),
            "continued_at": self.continued_at,
        }
        if self.ranks.first:
            save_checkpoint(self.checkpoint_dir, self.global_step, tensors, json_state(state))
        self.ranks.wait()

    def _step(self, packs: list[list[Piece]], place: tuple[int, int]) -> dict[str, float]:
        """One optimizer step over packs: its entry of the curves. UserError: a loss that is not finite.

        A rank takes every so many-th pack; one that gets none computes the first with a weight of 0, as all must join in.
        """
        self._optimizers_zero_grad()
        weighed = list(zip(range(len(packs)), packs, shares(packs), strict=True))
        mine = self.ranks.share(weighed) or [(0, packs[0], 0.0)]
        sums: dict[str, float] = {}
        for number, pack, share in mine:
            batch = self.data.load(pack, (*place, number))
            values = self._backward(batch, share, last=number == mine[-1][0])
            sums = {name: sums.get(name, 0.0) + value for name, value in values.items()}
        sums = dict(zip(sums, self.ranks.sums(list(sums.values())), strict=True))
        norm = float(whole(torch.nn.utils.clip_grad_norm_(self.trainable.values(), self.recipe.grad_clip)))
        if not math.isfinite(sums["loss"]) or not math.isfinite(norm):
            raise UserError(
                f"The training loss or its gradient is not finite at step {self.global_step + 1} (loss "
                f"{sums['loss']}, gradient norm {norm}); lower training.lr or set training.norm_before_fc."
            )
        self._optimizers_step()
        lr = self.optimizers[0].param_groups[0]["lr"]
        self._schedulers_step()
        entry = {"lr": lr, "loss": sums["loss"], "grad_norm": norm, "tokens": sums["full_acc_0_total"]}
        for step in range(self.recipe.ttt_steps):
            entry[f"acc_{step}"] = sums[f"full_acc_{step}_sum"] / max(sums[f"full_acc_{step}_total"], 1.0)
        return entry

    def _backward(self, batch: Batch, share: float, last: bool) -> dict[str, float]:
        """The gradient of a pack of this share is added; its loss, weighed, and its metric sums."""
        with gradients(self.shared_loss, last):
            loss, metrics = self.shared_loss({name: value.to(self.device) for name, value in batch.items()})
            (loss * share).backward()
        values = {"loss": loss.detach() * share, **metrics}
        numbers = torch.stack([value.float() for value in values.values()]).tolist()  # one wait for the device
        return {name: number if share else 0.0 * number for name, number in zip(values, numbers, strict=True)}

    def _tensors(self) -> dict[str, Tensor]:
        """The draft's tensors as they are, whole on every rank."""
        return {**self.model.state_dict(), **{name: whole(value.detach()) for name, value in self.trainable.items()}}

    def _restore(self, optimizer: torch.optim.Optimizer, checkpoint: TrainingCheckpoint) -> None:
        """Optimizer, schedule, random state, curves and the best so far; the step counts on from there."""
        tensors, state = checkpoint.tensors, checkpoint.state
        restore_optimizer(optimizer, self.trainable, tensors)
        self.global_step, self.curves = checkpoint.step, list(state["curves"])
        restore_random_state(tensors, self.device)
        best = BestSoFar.restored(state.get("best", {}), tensors)
        ours = state["identity"] == self.identity
        if ours:
            self.choice.best = best
        else:
            self.choice.judge_again(best, self._tensors(), self.curves)
        # Another recipe's rates are not this one's.
        restore_schedules(optimizer, self.schedulers, self.global_step, state["schedulers"] if ours else None)
