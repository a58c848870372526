"""Prompts files: JSONL of ``{"id", "messages"}``."""

import json
from pathlib import Path
from typing import Any

from errors import UserError


def read_prompts(path: str, limit: int | None = None) -> list[dict[str, Any]]:
    """The rows of a prompts file, ``{"id", "messages"}`` each; ``UserError`` names the first line that is none."""
    try:
        lines = Path(path).read_bytes().split(b"\n")  # not splitlines(): U+2028 and its like stand inside JSON strings
    except OSError as error:
        raise UserError(
            f"prompts file {path} cannot be read ({error.strerror}): correct data.prompts or acceptance.prompts"
        ) from None
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode("utf-8-sig"))
            turns = [_turn(turn) for turn in row["messages"]]
        except (ValueError, KeyError, TypeError):
            turns = []
        if not turns:
            raise UserError(f'{path}, line {number}, is no prompt: write {{"id": …, "messages": [{{"role", "content"}}]}}')
        rows.append({"id": str(row.get("id", f"{Path(path).stem}-{number}")), "messages": turns})
    if not rows:
        raise UserError(f"prompts file {path} is empty: give at least one prompt")
    return rows[:limit]


def _turn(turn: dict[str, Any]) -> dict[str, str]:
    role, content = turn["role"], turn["content"]
    if not isinstance(role, str) or not isinstance(content, str):
        raise TypeError("a turn's role and content are texts")
    return {"role": role, "content": content}
