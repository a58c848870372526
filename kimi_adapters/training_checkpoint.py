"""Training checkpoints: one safetensors file each, its JSON state in the header, so that both appear at once.

The header also holds a SHA-256 of state and tensors: a checkpoint with a turned bit is passed over like a torn one.
"""

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from errors import UserError
from kimi_adapters.checkpoint_proof import PROOF, STATE, Piece, proof, proven_state
from kimi_adapters.tensor_file import TensorFile
from kimi_adapters.torch_file import DTYPE_NAMES, read_tensors, write_tensors

KEPT = 2
_NAME = re.compile(r"step-(\d{8,})\.safetensors$")
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingCheckpoint:
    """After `step` optimizer steps: tensors in their own dtype (float32 stays float32) and a JSON state."""

    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]


def save_checkpoint(directory: Path, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Writes step-{step}.safetensors (temporary name, fsync, rename, fsync of the directory); keeps the last two."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"step-{step:08d}.safetensors"
    temporary, text = path.with_suffix(".tmp"), json.dumps(dict(state), sort_keys=True)
    with open(temporary, "wb") as file:
        write_tensors(file, tensors, metadata={STATE: text, PROOF: proof(text, _pieces(tensors))})
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    for old in _steps(directory)[:-KEPT]:
        (directory / f"step-{old:08d}.safetensors").unlink(missing_ok=True)
    for stray in directory.glob("step-*.tmp"):
        stray.unlink(missing_ok=True)


def load_checkpoint(directory: Path) -> TrainingCheckpoint | None:
    """The newest checkpoint that can be read; None when there is none. One that cannot is passed over, and logged."""
    for step in reversed(_steps(directory)):
        path = directory / f"step-{step:08d}.safetensors"
        try:
            return read_checkpoint(path)
        except (UserError, KeyError, ValueError) as error:
            logger.warning("checkpoint %s is passed over: %s", path, error)
    return None


def read_checkpoint(path: Path) -> TrainingCheckpoint:
    """One checkpoint. UserError, KeyError or ValueError where it is none."""
    found = _NAME.search(path.name)
    if found is None:
        raise ValueError(f"{path.name} is no name of a checkpoint")
    with TensorFile(path) as file:
        tensors, text = read_tensors(file), proven_state(file)
    return TrainingCheckpoint(int(found[1]), tensors, json.loads(text))


def _pieces(tensors: Mapping[str, Tensor]) -> Iterator[Piece]:
    """By name; on CPU one at a time."""
    for name, value in sorted(tensors.items()):
        flat = value.detach().to("cpu").contiguous().reshape(-1)
        yield name, DTYPE_NAMES[value.dtype], tuple(value.shape), flat.view(torch.uint8).numpy().data


def continued_checkpoint(path: Path, trainable: Mapping[str, Tensor], total_steps: int) -> TrainingCheckpoint:
    """The checkpoint of another training that this one goes on from, whatever code and recipe wrote it.

    UserError: it cannot be read, its tensors are others than `trainable`'s, or it is past `total_steps`.
    """
    try:
        checkpoint = read_checkpoint(path)
    except (KeyError, ValueError) as error:
        raise UserError(
            f"{path} is no training checkpoint that can be read ({error}); correct training.continue_from."
        ) from None
    stored = {name: value.shape for name, value in checkpoint.tensors.items()}
    if differing := [name for name, value in trainable.items() if stored.get(f"weight.{name}") != value.shape]:
        raise UserError(
            f"{path} holds a draft of another shape (it differs in {differing[0]}); give training the shape that it began with."
        )
    if checkpoint.step >= total_steps:
        raise UserError(
            f"{path} stands after {checkpoint.step} steps and this training takes {total_steps}; raise training.epochs."
        )
    return checkpoint


def json_state(state: dict[str, Any]) -> dict[str, Any]:
    """Schedulers carry their lambdas (None where they are functions) and a private flag or two; JSON values stay."""
    kept = ("base_lrs", "last_epoch", "_step_count", "_last_lr", "lr_lambdas")
    schedulers = [{name: values[name] for name in kept if name in values} for values in state["schedulers"]]
    return {**state, "schedulers": schedulers}


def _steps(directory: Path) -> list[int]:
    if not directory.is_dir():
        return []
    return sorted(int(match[1]) for match in map(_NAME.match, os.listdir(directory)) if match)
