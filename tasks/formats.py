"""The files that stages hand to one another: their names, and how they are read."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from kimi_adapters.tensor_file import TensorFile, read_array

TOKENS, MASKS, SAMPLES = "tokens.safetensors", "masks.safetensors", "samples.jsonl"
STATES = "states.safetensors"
VOCABULARY = "vocabulary.safetensors"
CHECK, REPORT, QUARANTINE = "check.json", "report.json", "quarantine.json"
CONVERSATIONS, REJECTS = "conversations.jsonl", "rejects.jsonl"
CURVES, START = "curves.json", "start.safetensors"
ACCEPTANCE, PLOT = "acceptance.json", "acceptance.png"


def read_tokens(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """``input_ids`` I32 [T] and ``offsets`` I64 [n+1] of a token shard."""
    file = TensorFile(folder / TOKENS)
    return read_array(file, "input_ids"), read_array(file, "offsets")


def read_masks(folder: Path) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """The loss mask U8 [T] and the samples' ids and sides."""
    with open(folder / SAMPLES, encoding="utf-8") as file:
        samples = [json.loads(line) for line in file]
    return read_array(TensorFile(folder / MASKS), "loss_mask"), samples


def state_rows(file: TensorFile, name: str) -> np.ndarray:
    """A state of a states file as F32 [T, H], whatever its dtype: BF16 is the upper half of an F32."""
    entry = file.entry(name)
    if entry.dtype == "BF16":
        raw = np.frombuffer(file.bytes(name), np.uint16).reshape(entry.shape)
        return (raw.astype(np.uint32) << 16).view(np.float32)
    return read_array(file, name)
