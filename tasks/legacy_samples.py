"""Samples of speculators' v1 format, one `.pt` file each, and how a folder of them is cut into shards.

Convention (speculators/train/data.py, `standardize_data_v1`): ``input_ids`` [T], ``loss_mask`` [T] of 0 and 1, and
``hidden_states``, a LIST of [T, hidden]: the auxiliary layers' states, rising, then the state whose norm the head reads. Other
layouts (one tensor [T, 4 · hidden] or [4, T, hidden], v0's ``target``, v2's ``token_ids``) are refused, not guessed at.
v1's own layer ids, in ``data_config.json`` beside the files, name the layer that a state LEAVES: ours are larger by one.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from errors import UserError
from kimi_adapters.pt_file import PtFile, PtTensor

CONFIG, SUFFIX = "data_config.json", ".pt"
DTYPES = {"BF16": "bfloat16", "F32": "float32"}


@dataclass(frozen=True)
class LegacySample:
    """``ids`` I32 [T], ``mask`` U8 [T]; ``states`` lie in the file, [T, hidden] each, auxiliary ones first, then the last."""

    ids: np.ndarray
    mask: np.ndarray
    states: list[PtTensor]


def sample_files(folder: Path) -> list[Path]:
    """The samples of a folder, `data_2.pt` before `data_10.pt`. ``UserError`` where there are none."""
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder: correct data.legacy_states")
    found = [path for path in folder.rglob(f"*{SUFFIX}") if path.is_file()]
    if not found:
        raise UserError(f"{folder} has no {SUFFIX} file: correct data.legacy_states")
    return sorted(found, key=lambda path: _natural(path.relative_to(folder).as_posix()))


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def cut_files(sizes: list[int], token_bytes: int, shard_tokens: int) -> list[range]:
    """Which files each shard takes, in order, by their sizes alone: a new file moves no shard but the last."""
    cuts, start, tokens = [], 0, 0
    for number, size in enumerate(sizes):
        tokens += size // token_bytes
        if tokens >= shard_tokens:
            cuts.append(range(start, number + 1))
            start, tokens = number + 1, 0
    return [*cuts, *([range(start, len(sizes))] if start < len(sizes) else [])]


def check_layers(folder: Path, layer_ids: list[int], explicit: bool, num_layers: int) -> None:
    """``UserError`` unless the folder's ``data_config.json``, or the user, says that its states are of ``layer_ids``."""
    path = folder / CONFIG
    if not path.exists():
        if not explicit:
            raise UserError(
                f"{folder} has no {CONFIG}, so nothing says which layers its states are of: set hidden_states.layer_ids to "
                "the layers that they enter (speculators' v1 names the layers that they leave: add one to each)"
            )
        return
    try:
        with open(path, encoding="utf-8") as file:
            left = [int(one) for one in json.load(file)["hidden_states"]["layer_ids"]]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} does not name the layers of its states: restore it") from error
    if left[-1:] != [num_layers - 1]:
        raise UserError(
            f"{path} says that the last of its states leaves layer {left[-1:]}, not {num_layers - 1}: extract them anew"
        )
    entered = [one + 1 for one in left[:-1]]
    if entered != layer_ids:
        raise UserError(
            f"{path} has states that leave the layers {left[:-1]}, which enter {entered}, and hidden_states.layer_ids is "
            f"{layer_ids}: set it to {entered} to take them"
        )


def read_sample(file: PtFile, layers: int, hidden: int, vocabulary: int) -> LegacySample:
    """The sample in a file. ``UserError`` where it is not of the convention, or not of this verifier's sizes."""
    content = file.content
    if not isinstance(content, dict) or not {"input_ids", "hidden_states", "loss_mask"} <= set(content):
        raise _unfit(file, "it has not input_ids, hidden_states and loss_mask")
    states = content["hidden_states"]
    if not isinstance(states, list | tuple) or not all(isinstance(one, PtTensor) for one in states):
        raise _unfit(file, "its hidden_states are no list of tensors, one a layer, as v1 has them")
    if len(states) != layers:
        raise _unfit(file, f"it has states of {len(states)} layers where the settings make it {layers}, the last included")
    ids, mask = _numbers(file, "input_ids"), _numbers(file, "loss_mask")
    if not len(ids) or len(mask) != len(ids):
        raise _unfit(file, f"it has {len(ids)} token ids and a mask of {len(mask)}")
    shapes = {one.shape for one in states}
    if shapes != {(len(ids), hidden)}:
        raise _unfit(
            file, f"its states are {sorted(shapes)} where {len(ids)} tokens of this verifier make ({len(ids)}, {hidden})"
        )
    dtypes = {one.dtype for one in states}
    if len(dtypes) > 1 or not dtypes <= set(DTYPES):
        raise _unfit(file, f"its states are {', '.join(sorted(dtypes))} and one of {', '.join(DTYPES)} is taken")
    if ids.min() < 0 or ids.max() >= vocabulary:
        raise _unfit(file, f"it has token ids outside this verifier's vocabulary of {vocabulary}")
    if not np.isin(mask, (0, 1)).all():
        raise _unfit(file, "its loss_mask has other values than 0 and 1")
    return LegacySample(ids.astype(np.int32), mask.astype(np.uint8), list(states))


def _numbers(file: PtFile, name: str) -> np.ndarray:
    """A list of numbers, or a tensor of one dimension."""
    value: Any = file.content[name]
    if isinstance(value, PtTensor) and len(value.shape) == 1 and value.dtype != "BF16":
        return file.array(value)
    if isinstance(value, list) and all(isinstance(one, int) and abs(one) < 1 << 31 for one in value):
        return np.array(value, np.int64)
    raise _unfit(file, f"its {name} is no row of numbers")


def _unfit(file: PtFile, why: str) -> UserError:
    return UserError(f"{file.path} is no sample that fits: {why}; remove it from data.legacy_states or make it anew")
