"""Which evaluation prompts a draft has been trained on: those whose first user turn stands in a sample of the train side."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tasks.formats import SAMPLES
from tasks.slices import HASH_DIGITS, text_digest


def trained_on(prompts: Iterable[dict[str, Any]], masks: Iterable[Path]) -> list[str]:
    """Ids of such prompts (rows of ``read_prompts``), in their order; ``masks`` are folders of loss masks.

    Told by content: the digest of the normalised turn, as ``samples.jsonl`` has it under ``first``.
    """
    firsts = {row["id"]: _first(row["messages"]) for row in prompts}
    wanted = {digest.encode() for digest in firsts.values()}
    found = {one["first"] for folder in masks for one in _lines(folder / SAMPLES, wanted) if one["side"] == "train"}
    return [name for name, digest in firsts.items() if digest in found]


def _first(turns: list[dict[str, str]]) -> str:
    asked = next((turn["content"] for turn in turns if turn["role"] == "user"), "")
    return text_digest([asked]).hex()[:HASH_DIGITS]


def _lines(path: Path, wanted: set[bytes]) -> Iterable[dict[str, Any]]:
    """The lines whose first user turn is one of those; few are parsed of millions."""
    with open(path, "rb") as file:
        for line in file:
            _, _, rest = line.partition(b'"first": "')
            if rest[:HASH_DIGITS] in wanted:
                yield json.loads(line)
