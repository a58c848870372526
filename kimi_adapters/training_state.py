"""What makes a training go on exactly where a checkpoint stands: whose it is, its random state, its schedules."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup

from kimi_adapters.packing import PackedShards
from kimi_adapters.recipe import Recipe


def identity(recipe: Recipe, data: PackedShards, steps_by_epoch: Sequence[int], initial: Mapping[str, Tensor]) -> str:
    """A digest of the recipe, of how the data is cut, and of the start: what a checkpoint belongs to, however often one is
    made."""
    pieces = [(p.shard, p.sample, p.start, p.stop) for p in data.pieces]
    values = {name: value for name, value in asdict(recipe).items() if name != "checkpoint_every_steps"}
    text = json.dumps([values, data.layer_ids, steps_by_epoch, pieces])
    digest = hashlib.sha256(text.encode())
    for tensor in initial.values():
        digest.update(tensor.numpy().data)
    return digest.hexdigest()


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The state of torch's generators, under the names that a checkpoint gives it."""
    state = {"rng": torch.get_rng_state()}
    return state | {"rng.cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else state


def restore_random_state(tensors: Mapping[str, Tensor], device: torch.device) -> None:
    """Puts back what `random_state` gave, as far as this device has it."""
    torch.set_rng_state(tensors["rng"])
    if "rng.cuda" in tensors and device.type == "cuda":
        torch.cuda.set_rng_state(tensors["rng.cuda"], device)


def schedules(optimizers: Sequence[torch.optim.Optimizer], recipe: Recipe, total_steps: int) -> list[LambdaLR]:
    """The recipe's learning-rate schedule by steps, one an optimizer, if it has one."""
    warmup = int(total_steps * recipe.warmup)
    makers = {"cosine": get_cosine_schedule_with_warmup, "linear": get_linear_schedule_with_warmup}
    if recipe.scheduler not in makers:
        return []
    return [makers[recipe.scheduler](optimizer, warmup, total_steps) for optimizer in optimizers]


def restore_schedules(ours: Sequence[LambdaLR], step: int, stored: Sequence[Mapping[str, Any]] | None) -> None:
    """Schedules and their optimizers' rates as they are after `step`: as `stored`, or, where another recipe's rates are
    (None), as this one has them at that step."""
    for number, schedule in enumerate(ours):
        if stored is not None:
            schedule.load_state_dict(dict(stored[number]))
        else:
            schedule.last_epoch = step
            schedule._last_lr = [base * rate(step) for base, rate in zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)]
        for group, lr in zip(schedule.optimizer.param_groups, schedule.get_last_lr(), strict=True):
            group["lr"] = lr
