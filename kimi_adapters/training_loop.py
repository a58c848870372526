"""The loop of a draft's training: speculators' Trainer with its device, data, schedule, checkpoints and loop replaced whole.

What is replaced and why: the published Trainer moves the model to device 0 and synchronizes an accelerator that a
CPU does not have; saves the optimizer in bfloat16, its step counter too; gives a resumed schedule the epoch where it
counts steps; and ends an epoch, not the run, at `max_steps`. Here a step is the unit everywhere, and a run that is
killed and resumed takes the same learning rates and, in float32 on a CPU, arrives at the same bits.
"""

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from speculators.model import SpeculatorModel
from speculators.models.eagle3 import Eagle3DraftModel
from speculators.train.trainer import Trainer, TrainerConfig
from torch import Tensor

from errors import ToldToStop, UserError
from kimi_adapters import optimizers
from kimi_adapters.checkpoint_choice import BestSoFar, CheckpointChoice
from kimi_adapters.data_parallel import over_ranks, whole, whole_tensors
from kimi_adapters.draft import copy_tensors, draft_config_values, trainable_state
from kimi_adapters.epoch_packs import EpochPacks
from kimi_adapters.pack_loss import PackLoss
from kimi_adapters.packing import PackedShards, Piece
from kimi_adapters.prefetch import Prefetch
from kimi_adapters.process_group import Ranks
from kimi_adapters.recipe import Recipe
from kimi_adapters.step_gradient import StepGradient
from kimi_adapters.training_checkpoint import (
    TrainingCheckpoint,
    continued_checkpoint,
    json_state,
    load_checkpoint,
    save_checkpoint,
)
from kimi_adapters.training_state import identity, random_state, restore_random_state, restore_schedules, schedules

Curves = list[dict[str, float]]


class DraftTrainer(Trainer):
    """Runs a recipe over packs. `curves` grows by a step; `initial` holds the trainable tensors before any, `last` those
    after the last step, on the first rank."""

    def __init__(
        self,
        model: Eagle3DraftModel,
        recipe: Recipe,
        data: PackedShards,
        checkpoint_dir: Path,
        progress: Callable[[dict[str, Any]], None],
        ranks: Ranks,
        choices: Mapping[str, str],
        sharding: str = "none",
        continue_from: Path | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ):
        self.recipe, self.data, self.progress = recipe, data, progress
        self.ranks, self.device, self.sharding = ranks, ranks.device, sharding
        self.checkpoint_dir, self.continue_from, self.should_stop = checkpoint_dir, continue_from, should_stop
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
        self.gradient = StepGradient(over_ranks(self.pack_loss, self.ranks, self.sharding), self.ranks)
        named = dict(self.model.named_parameters())
        self.trainable = {name: named[name] for name in self.initial}

    def setup_optimizer(self) -> None:
        """The optimizers and schedules that count steps, as the checkpoint has them."""
        self.optimizers = optimizers.build(self.recipe, self.model, self.trainable)
        self.schedulers = schedules(self.optimizers, self.recipe, self.total_steps)
        if self.resumed:
            self._restore(self.resumed)

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
        steps = list(enumerate(self.packs.steps(epoch)))[skip:]
        wanted = [one for number, packs in steps for one in self.gradient.wanted(packs, (epoch, number))]
        with Prefetch(self.data, self.device, wanted) as batches:
            for _, packs in steps:
                if self.choice.over:
                    return
                self._one_step(epoch, packs, batches)
                self.maybe_save_checkpoint(epoch)

    def _one_step(self, epoch: int, packs: list[list[Piece]], batches: Prefetch) -> None:
        """A step, and what is told of it."""
        started = time.monotonic()
        entry = {"step": self.global_step + 1, "epoch": epoch, **self._step(packs, batches)}
        self.global_step += 1
        seconds = time.monotonic() - started
        entry |= {"tokens_per_s": sum(len(piece) for pack in packs for piece in pack) / seconds, "seconds": seconds}
        self.curves.append(entry)
        if self.choice.due(self.global_step):
            entry["replayed_length"] = self.choice.judge(self.global_step, self._tensors(), self.trainable)
        if self.ranks.first:
            self.progress({**entry, "total_steps": self.total_steps})

    def maybe_save_checkpoint(self, epoch: int | str, local_step: int = 0) -> None:
        """Saves at every `checkpoint_every_steps`, at the end, and when told to stop, which it then does.

        Whole tensors, by the first rank while the others wait.
        """
        last = self.global_step == self.total_steps or self.choice.over
        stop = not last and self.ranks.firsts(self.should_stop())
        if self.global_step % self.recipe.checkpoint_every_steps and not (last or stop):
            return
        trained = {f"weight.{name}": parameter for name, parameter in self.trainable.items()}
        tensors = whole_tensors(trained | optimizers.kept_tensors(self.optimizers, self.trainable), self.ranks)
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
        if stop:
            raise ToldToStop(f"training stopped after step {self.global_step} of {self.total_steps}")

    def _step(self, packs: list[list[Piece]], batches: Prefetch) -> dict[str, float]:
        """One optimizer step over packs: its entry of the curves. UserError: a loss that is not finite."""
        self._optimizers_zero_grad()
        waited, reading, read_bytes = batches.waited, batches.reading.seconds, batches.read_bytes
        with self.pack_loss.one_step():
            sums = self.gradient.of(packs, batches)
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
        longest = self.ranks.largest(batches.waited - waited)  # the others wait for that rank's gradients
        entry |= {"loader_wait": longest, "loader_reading": batches.reading.seconds - reading}
        return {**entry, "loader_bytes": batches.read_bytes - read_bytes}

    def _tensors(self) -> dict[str, Tensor]:
        """The draft's tensors as they are, whole on every rank."""
        return {**self.model.state_dict(), **{name: whole(value.detach()) for name, value in self.trainable.items()}}

    def _restore(self, checkpoint: TrainingCheckpoint) -> None:
        """Optimizers, schedules, random state, curves and the best so far; the step counts on from there."""
        tensors, state = checkpoint.tensors, checkpoint.state
        optimizers.restore(self.optimizers, self.trainable, tensors)
        self.global_step, self.curves = checkpoint.step, list(state["curves"])
        restore_random_state(tensors, self.device)
        best = BestSoFar.restored(state.get("best", {}), tensors)
        ours = state["identity"] == self.identity
        if ours:
            self.choice.best = best
        else:
            self.choice.judge_again(best, self._tensors(), self.curves)
        # Another recipe's rates are not this one's.
        restore_schedules(self.schedulers, self.global_step, state["schedulers"] if ours else None)
