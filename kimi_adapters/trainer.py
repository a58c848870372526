"""Training a draft: speculators' Trainer with its device, data, schedule, checkpoints and loop replaced whole.

What is replaced and why: the published Trainer moves the model to device 0 and synchronizes an accelerator that a
CPU does not have; saves the optimizer in bfloat16, its step counter too; gives a resumed schedule the epoch where it
counts steps; and ends an epoch, not the run, at `max_steps`. Here a step is the unit everywhere, and a run that is
killed and resumed takes the same learning rates and, in float32 on a CPU, arrives at the same bits.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from speculators.losses import LossConfig, resolve_loss_config
from speculators.model import SpeculatorModel
from speculators.models.eagle3 import Eagle3DraftModel
from speculators.train.trainer import Trainer, TrainerConfig
from torch import Tensor
from transformers import get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup

from errors import UserError
from kimi_adapters.checkpoint_choice import BestSoFar, CheckpointChoice
from kimi_adapters.config import TextConfig
from kimi_adapters.draft import (
    VerifierRows,
    build_draft,
    copy_tensors,
    draft_config,
    draft_shape,
    trainable_state,
)
from kimi_adapters.draft_layers import DraftLayers
from kimi_adapters.draft_vocabulary import DraftVocabulary
from kimi_adapters.epoch_packs import EpochPacks, shares
from kimi_adapters.packing import Batch, PackedShards
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
from kimi_adapters.training_choices import SUPERVISED_ROWS, choose
from kimi_adapters.ttt import ttt_loss

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
    device: torch.device | str = "cpu",
    parent: Mapping[str, Tensor] | None = None,
    verifier_name: str | None = None,
    continue_from: Path | None = None,
) -> TrainResult:
    """Trains a draft from the recipe, or goes on from the newest checkpoint in `checkpoint_dir`.

    Where that has none, `continue_from` is the checkpoint to go on from, that of other code, recipe or data: weights,
    optimizer, random state and step count are its own, the learning rate is this recipe's at that step.

    `progress` gets {step, total_steps, and the step's entry of the curves} after every step. `parent` holds the
    tensors of a draft to start from. UserError: shapes that do not fit, states or a loss that are not finite, a
    checkpoint of another recipe, start or data.
    """
    device = torch.device(device)
    choices = choose(recipe, device)
    config = draft_config(recipe, verifier, data.layer_ids, vocabulary.size, choices["attention"], verifier_name=verifier_name)
    model = build_draft(config, rows, vocabulary, recipe.seed, parent, recipe.train_lm_head)
    trainer = DraftTrainer(model, recipe, data, checkpoint_dir, progress, device, choices, continue_from)
    trainer.run_training()
    best = trainer.choice.best
    copy_tensors(model, best.tensors, "The best step")
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
    """Runs a recipe over packs. `curves` grows by a step; `initial` holds the trainable tensors before any."""

    def __init__(
        self,
        model: Eagle3DraftModel,
        recipe: Recipe,
        data: PackedShards,
        checkpoint_dir: Path,
        progress: Progress,
        device: torch.device,
        choices: Mapping[str, str],
        continue_from: Path | None = None,
    ):
        self.recipe, self.data, self.device, self.progress = recipe, data, device, progress
        self.choices = dict(choices)
        self.checkpoint_dir, self.continue_from = checkpoint_dir, continue_from
        self.continued_at: int | None = None
        self.packs = EpochPacks(data, recipe.packs_per_step)
        self.steps_by_epoch = [len(self.packs.steps(epoch)) for epoch in range(recipe.epochs)]
        self.total_steps = sum(self.steps_by_epoch)
        self.loss_config: LossConfig = resolve_loss_config(recipe.loss, self.choices["loss"])
        self.curves: Curves = []
        self.global_step = 0
        self.choice = CheckpointChoice(recipe, data, self.total_steps)
        config = TrainerConfig(
            lr=recipe.lr,
            num_epochs=recipe.epochs,
            save_path=str(checkpoint_dir),
            weight_decay=recipe.weight_decay,
            scheduler_type=recipe.scheduler,
            scheduler_total_steps=self.total_steps,
            hidden_states_dtype=torch.float32 if device.type == "cpu" else torch.bfloat16,
        )
        super().__init__(model, config, self.packs)

    def setup_trainer(self) -> None:
        """The device, the start, and the checkpoint to go on from, if it is this run's."""
        self.local_rank = self.device
        self.device_type = self.device.type
        self.initial = trainable_state(self.model)
        self.identity = self._identity()
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
        """Moves the model to the device; its tensors become the checkpoint's, where there is one."""
        SpeculatorModel.verify_training_compatible(self.model)
        self.model.to(self.device)
        named = dict(self.model.named_parameters())
        self.trainable = {name: named[name] for name in self.initial}
        if self.resumed:
            with torch.no_grad():
                for name, parameter in self.trainable.items():
                    parameter.copy_(self.resumed.tensors[f"weight.{name}"])
        self.layers = DraftLayers(draft_shape(self.model), named)

    def setup_optimizer(self) -> None:
        """AdamW over the trained tensors and a schedule that counts steps, both as the checkpoint has them."""
        recipe = self.recipe
        optimizer = torch.optim.AdamW(self.trainable.values(), lr=recipe.lr, weight_decay=recipe.weight_decay, fused=True)
        warmup = int(self.total_steps * recipe.warmup)
        self.optimizers = [optimizer]
        self.schedulers = []
        if recipe.scheduler == "cosine":
            self.schedulers = [get_cosine_schedule_with_warmup(optimizer, warmup, self.total_steps)]
        if recipe.scheduler == "linear":
            self.schedulers = [get_linear_schedule_with_warmup(optimizer, warmup, self.total_steps)]
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

    def train_epoch(self, epoch: int, skip: int = 0) -> None:
        """The epoch's steps after the first `skip`."""
        for number, packs in enumerate(self.packs.steps(epoch)):
            if number < skip:
                continue
            if self.choice.over:
                return
            started = time.monotonic()
            batches = (self.data.load(pack, (epoch, number, i)) for i, pack in enumerate(packs))
            entry = {"step": self.global_step + 1, "epoch": epoch, **self._step(batches, shares(packs))}
            self.global_step += 1
            seconds = time.monotonic() - started
            entry["tokens_per_s"] = sum(len(piece) for pack in packs for piece in pack) / seconds
            self.curves.append(entry)
            if self.choice.due(self.global_step):
                entry["replayed_length"] = self.choice.judge(self.global_step, self.model, self.trainable)
            self.progress({**entry, "total_steps": self.total_steps, "seconds": seconds})
            self.maybe_save_checkpoint(epoch)

    def maybe_save_checkpoint(self, epoch: int | str, local_step: int = 0) -> None:
        """Saves at every `checkpoint_every_steps` and at the end."""
        last = self.global_step == self.total_steps or self.choice.over
        if self.global_step % self.recipe.checkpoint_every_steps and not last:
            return
        tensors = {f"weight.{name}": parameter for name, parameter in self.trainable.items()}
        tensors |= optimizer_tensors(self.optimizers[0], self.trainable) | self.choice.best.stored()
        tensors["rng"] = torch.get_rng_state()
        if self.device.type == "cuda":
            tensors["rng.cuda"] = torch.cuda.get_rng_state(self.device)
        state = {
            "identity": self.identity,
            "epoch": epoch,
            "schedulers": [scheduler.state_dict() for scheduler in self.schedulers],
            "curves": self.curves,
            "best": self.choice.best.state(),
            "continued_at": self.continued_at,
        }
        save_checkpoint(self.checkpoint_dir, self.global_step, tensors, json_state(state))

    def _step(self, batches: Iterator[Batch], shares: list[float]) -> dict[str, float]:
        """One optimizer step over packs of these shares: its entry of the curves. UserError: a loss that is not finite."""
        self._optimizers_zero_grad()
        sums: dict[str, float] = {}
        for batch, share in zip(batches, shares, strict=True):
            loss, metrics = self._loss({name: value.to(self.device) for name, value in batch.items()})
            (loss * share).backward()
            values = {"loss": loss.detach() * share, **metrics}
            numbers = torch.stack([value.float() for value in values.values()]).tolist()  # one wait for the device
            sums = {name: sums.get(name, 0.0) + number for name, number in zip(values, numbers, strict=True)}
        norm = float(torch.nn.utils.clip_grad_norm_(self.trainable.values(), self.recipe.grad_clip))
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

    def _loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The pack's loss and metric sums, by the forward that suits the device."""
        recipe = self.recipe
        if self.choices["forward"] == SUPERVISED_ROWS:
            return ttt_loss(self.layers, batch, recipe.ttt_steps, recipe.ttt_decay, self.loss_config)
        with torch.autocast(self.device_type, dtype=self.config.hidden_states_dtype):
            _, loss, metrics = self.model(
                **batch,
                ttt_steps=recipe.ttt_steps,
                ttt_step_loss_decay=recipe.ttt_decay,
                loss_config=self.loss_config,
            )
        return loss, metrics

    def _restore(self, optimizer: torch.optim.Optimizer, checkpoint: TrainingCheckpoint) -> None:
        """Optimizer, schedule, random state, curves and the best so far; the step counts on from there."""
        tensors, state = checkpoint.tensors, checkpoint.state
        restore_optimizer(optimizer, self.trainable, tensors)
        self.global_step, self.curves = checkpoint.step, list(state["curves"])
        torch.set_rng_state(tensors["rng"])
        if "rng.cuda" in tensors and self.device.type == "cuda":
            torch.cuda.set_rng_state(tensors["rng.cuda"], self.device)
        best = BestSoFar.restored(state.get("best", {}), tensors)
        if state["identity"] == self.identity:
            self.choice.best = best
            for scheduler, values in zip(self.schedulers, state["schedulers"], strict=True):
                scheduler.load_state_dict(values)
        else:
            self.choice.judge_again(best, self.model, self.curves)
            for scheduler in self.schedulers:  # another recipe's rates are not this one's
                scheduler.last_epoch = self.global_step
                scheduler._last_lr = [
                    base * rate(self.global_step) for base, rate in zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
                ]
        for scheduler in self.schedulers:
            for group, lr in zip(optimizer.param_groups, scheduler.get_last_lr(), strict=True):
                group["lr"] = lr

    def _identity(self) -> str:
        """A digest of the recipe, of how the data is cut, and of the start: what a checkpoint belongs to."""
        pieces = [(p.shard, p.sample, p.start, p.stop) for p in self.data.pieces]
        text = json.dumps([asdict(self.recipe), self.data.layer_ids, self.steps_by_epoch, pieces])
        digest = hashlib.sha256(text.encode())
        for tensor in self.initial.values():
            digest.update(tensor.numpy().data)
        return digest.hexdigest()
