"""Prompts files: JSONL of ``{"id", "messages"}``."""

from pathlib import Path
from typing import Any

from errors import UserError
from kimi_adapters.chat_reasons import Reason, Rejected
from kimi_adapters.chat_rows import message_of
from tasks.json_rows import loads


def read_prompts(path: str, limit: int | None = None) -> list[dict[str, Any]]:
    """The rows of a prompts file, ``{"id", "messages"}`` each, their turns of text alone.

    ``UserError`` names the first line that is none, and why; lines end as JSONL's do, with a line feed.
    """
    try:
        lines = Path(path).read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as error:
        raise UserError(
            f"prompts file {path} cannot be read ({error.strerror}): correct data.prompts or acceptance.prompts"
        ) from None
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows.append(_prompt(line, f"{Path(path).stem}-{number}"))
        except ValueError as error:
            why = error if isinstance(error, Rejected) else Reason.NOT_JSON.value
            raise UserError(
                f'{path}, line {number}, is no prompt ({why}): write {{"id": …, "messages": [{{"role", "content"}}]}}'
            ) from None
    if not rows:
        raise UserError(f"prompts file {path} is empty: give at least one prompt")
    return rows[:limit]


def _prompt(line: bytes, name: str) -> dict[str, Any]:
    """A prompt; ``Rejected``, or another ``ValueError`` where the line is no JSON in UTF-8."""
    row = loads(line.decode())
    if not isinstance(row, dict):
        raise Rejected(Reason.NOT_AN_OBJECT)
    turns = row.get("messages")
    if not isinstance(turns, list):
        raise Rejected(Reason.NO_CONVERSATION)
    if not turns:
        raise Rejected(Reason.NO_TURNS)
    return {"id": str(row.get("id", name)), "messages": [_turn(turn) for turn in turns]}


def _turn(turn: Any) -> dict[str, str]:
    message = message_of(turn)
    if message.tool_calls or message.role == "tool":
        raise Rejected(Reason.FORMAT_TOOL_CALLS)
    if message.reasoning:
        raise Rejected(Reason.FORMAT_THINKING)
    try:
        message.content.encode()
    except UnicodeEncodeError:
        raise Rejected(Reason.SURROGATE) from None
    return {"role": message.role, "content": message.content}
