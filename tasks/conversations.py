"""Rows of a conversations file as samples: two spellings of a conversation, token ids as served, and reasons to reject."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from blake3 import blake3

from errors import UserError
from kimi_adapters.chat import ROLES, ChatFormat, render
from kimi_adapters.tokenizer import Tokenizer

_ROLE_OF = {"system": "system", "user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant"}


class Reason(StrEnum):
    """Why a row is no sample."""

    NOT_JSON = "not JSON"
    NO_CONVERSATION = "no conversation in it"
    UNKNOWN_ROLE = "unknown role"
    NOT_TEXT = "content is not text"
    NO_ASSISTANT = "no assistant turn"
    NOTHING_SUPERVISED = "no supervised token"
    TOO_LONG = "too long"


class Rejected(Exception):
    """A row that is no sample."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason


@dataclass(frozen=True)
class Sample:
    """One conversation: token ids, a mask of equal length (1: supervised), its id and its side."""

    id: str
    side: str
    ids: list[int]
    mask: list[int]


def turns_of(row: Any) -> list[dict[str, str]]:
    """The turns of a row as ``{role, content}``; ``Rejected`` with the reason."""
    if not isinstance(row, dict):
        raise Rejected(Reason.NO_CONVERSATION)
    turns = row.get("messages", row.get("conversations"))
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, dict) for turn in turns):
        raise Rejected(Reason.NO_CONVERSATION)
    found = []
    for turn in turns:
        role = _ROLE_OF.get(str(turn.get("role", turn.get("from"))))
        content = turn.get("content", turn.get("value"))
        if role is None:
            raise Rejected(Reason.UNKNOWN_ROLE)
        if not isinstance(content, str):
            raise Rejected(Reason.NOT_TEXT)
        found.append({"role": role, "content": content})
    assert all(turn["role"] in ROLES for turn in found)
    return found


def side_of(row: dict[str, Any], turns: list[dict[str, str]], held_out: float) -> str:
    """``train`` or ``held_out``, by a hash of the conversation's id, else of its first user turn."""
    name = row.get("id")
    first = next((turn["content"] for turn in turns if turn["role"] == "user"), "")
    seed = f"id {name}" if name is not None else f"turn {first}"
    share = int.from_bytes(hashlib.sha256(seed.encode("utf-8", "surrogatepass")).digest()[:8]) / 2**64
    return "held_out" if share < held_out else "train"


class Reader:
    """Turns rows into samples; every row ends as a sample or in ``rejects``, counted by reason."""

    def __init__(self, tokenizer: Tokenizer, form: ChatFormat, max_length: int, held_out: float) -> None:
        self._tokenizer, self._form = tokenizer, form
        self._max_length, self._held_out = max_length, held_out
        self.rows = 0
        self.rejects: list[dict[str, Any]] = []
        self.reasons: Counter[str] = Counter()

    def samples(self, path: Path, digest: str | None, limit: int | None) -> Iterator[Sample]:
        """The samples of a JSONL file in file order. ``UserError`` when its bytes are not those of ``digest``."""
        hasher = blake3()
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                hasher.update(line)
                if not line.strip() or (limit is not None and self.rows >= limit):
                    continue
                self.rows += 1
                try:
                    yield self._sample(line, number)
                except Rejected as rejected:
                    self.reasons[rejected.reason.value] += 1
                    self.rejects.append({"line": number, "reason": rejected.reason.value})
        if digest is not None and hasher.hexdigest() != digest:
            raise UserError(f"{path} changed while the run was going on: start the run again")

    def _sample(self, line: bytes, number: int) -> Sample:
        try:
            row = json.loads(line)
        except ValueError:
            raise Rejected(Reason.NOT_JSON) from None
        turns = turns_of(row)
        ids, mask = self._tokens(row, turns)
        if len(ids) > self._max_length:
            raise Rejected(Reason.TOO_LONG)
        # The first token is never predicted, so a mask on it alone trains nothing.
        if not any(mask[1:]):
            raise Rejected(Reason.NOTHING_SUPERVISED)
        return Sample(str(row.get("id", f"line {number}")), side_of(row, turns, self._held_out), ids, mask)

    def _tokens(self, row: dict[str, Any], turns: list[dict[str, str]]) -> tuple[list[int], list[int]]:
        if "answer_ids" in row:
            prompt, answer = row["prompt_ids"], row["answer_ids"]
            return [*prompt, *answer], [0] * len(prompt) + [1] * len(answer)
        if not any(turn["role"] == "assistant" for turn in turns):
            raise Rejected(Reason.NO_ASSISTANT)
        return render(turns, self._tokenizer, self._form)
