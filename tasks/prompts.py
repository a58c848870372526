"""Prompts files: JSONL of ``{"id", "messages"}``."""

import json
from pathlib import Path
from typing import Any

from errors import UserError


def read_prompts(path: str, limit: int | None = None) -> list[dict[str, Any]]:
    """The rows of a prompts file, ``{"id", "messages"}`` each; ``UserError`` names the first line that is none."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(
            f"prompts file {path} cannot be read ({error.strerror}): correct data.prompts or acceptance.prompts"
        ) from None
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            turns = [{"role": str(turn["role"]), "content": str(turn["content"])} for turn in row["messages"]]
        except (ValueError, KeyError, TypeError):
            raise UserError(
                f'{path}, line {number}, is no prompt: write {{"id": …, "messages": [{{"role", "content"}}]}}'
            ) from None
        rows.append({"id": str(row.get("id", f"{Path(path).stem}-{number}")), "messages": turns})
    if not rows:
        raise UserError(f"prompts file {path} is empty: give at least one prompt")
    return rows[:limit]
