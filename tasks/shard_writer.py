"""Writes a token shard and, apart from it, its loss masks."""

import json
from collections.abc import Callable, Sequence

import numpy as np

from artifacts.store import ArtifactWriter, Sealed
from kimi_adapters.tensor_file import TensorWriter
from tasks.conversations import Sample
from tasks.formats import MASKS, SAMPLES, TOKENS


def write_shard(new_writer: Callable[[str], ArtifactWriter], samples: Sequence[Sample]) -> tuple[Sealed, Sealed]:
    """Write ``samples`` as a token shard (``input_ids`` I32 [T], ``offsets`` I64 [n+1]) and, apart, their masks (U8 [T])."""
    ids = np.concatenate([np.asarray(sample.ids, np.int32) for sample in samples])
    mask = np.concatenate([np.asarray(sample.mask, np.uint8) for sample in samples])
    offsets = np.cumsum([0, *(len(sample.ids) for sample in samples)], dtype=np.int64)
    tokens = new_writer("token_shard")
    with tokens.open(TOKENS) as file:
        writer = TensorWriter(file, [("input_ids", "I32", ids.shape), ("offsets", "I64", offsets.shape)])
        writer.write("input_ids", ids)
        writer.write("offsets", offsets)
        writer.close()
    masks = new_writer("loss_masks")
    with masks.open(MASKS) as file:
        writer = TensorWriter(file, [("loss_mask", "U8", mask.shape)])
        writer.write("loss_mask", mask)
        writer.close()
    with masks.open(SAMPLES) as file:
        for sample in samples:
            line = {"id": sample.id, "side": sample.side, "supervised": int(sum(sample.mask))}
            file.write(json.dumps(line).encode() + b"\n")
    count = {side: sum(s.side == side for s in samples) for side in ("train", "held_out")}
    supervised = {side: sum(sum(s.mask) for s in samples if s.side == side) for side in ("train", "held_out")}
    return tokens.seal(tokens=len(ids), samples=len(samples)), masks.seal(
        tokens=len(ids),
        samples=len(samples),
        train_samples=count["train"],
        held_out_samples=count["held_out"],
        train_supervised=supervised["train"],
        held_out_supervised=supervised["held_out"],
    )
