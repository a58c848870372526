"""The files that stages hand to one another: their names, and how they are read."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from kimi_adapters.tensor_file import TensorFile, read_array

TOKENS, MASKS, SAMPLES = "tokens.safetensors", "masks.safetensors", "samples.jsonl"
STATES, STATS = "states.safetensors", "stats.safetensors"
VOCABULARY = "vocabulary.safetensors"
CHECK, CHECK_ARRAYS, CHECK_IDS = "check.json", "check.safetensors", "ids.json"
REPORT, REPORT_TEXT, QUARANTINE, ASIDE = "report.json", "report.md", "quarantine.json", "aside.jsonl"
CONVERSATIONS, REJECTS = "conversations.jsonl", "rejects.jsonl"
CURVES, START = "curves.parquet", "start.safetensors"
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


def state_rows(file: TensorFile, name: str, rows: slice | np.ndarray) -> np.ndarray:
    """Rows of a state as F32 [k, H], whatever its dtype (BF16 is the upper half of an F32); no other row is read."""
    entry = file.entry(name)
    if entry.dtype == "BF16":
        raw = np.frombuffer(file.bytes(name), np.uint16).reshape(entry.shape)[rows]
        return (raw.astype(np.uint32) << 16).view(np.float32)
    return np.array(read_array(file, name)[rows])
