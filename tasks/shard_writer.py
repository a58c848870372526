"""Writes a token shard and, apart from it, its loss masks."""

import json
from collections.abc import Callable, Sequence

import numpy as np

from artifacts.writer import ArtifactWriter, Sealed
from kimi_adapters.tensor_file import TensorWriter
from tasks.formats import MASKS, SAMPLES, TOKENS
from tasks.samples import Sample


def write_shard(new_writer: Callable[[str], ArtifactWriter], samples: Sequence[Sample]) -> tuple[Sealed, Sealed]:
    """Write ``samples`` as a token shard (``input_ids`` I32 [T], ``offsets`` I64 [n+1]) and, apart, their masks (U8 [T])."""
    ids = np.concatenate([sample.ids for sample in samples])
    mask = np.concatenate([sample.mask for sample in samples])
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
            file.write(json.dumps(sample.line).encode() + b"\n")
    count, supervised = {"train": 0, "held_out": 0}, {"train": 0, "held_out": 0}
    for sample in samples:
        count[sample.line["side"]] += 1
        supervised[sample.line["side"]] += sample.line["supervised"]
    return tokens.seal(tokens=len(ids), samples=len(samples)), masks.seal(
        tokens=len(ids),
        samples=len(samples),
        train_samples=count["train"],
        held_out_samples=count["held_out"],
        train_supervised=supervised["train"],
        held_out_supervised=supervised["held_out"],
    )
