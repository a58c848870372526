"""A row that may be trained on, and the samples that it becomes."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from blake3 import blake3

from kimi_adapters.chat_messages import THINK_END, Conversation
from kimi_adapters.chat_reasons import Reason, Rejected
from tasks.slices import HASH_DIGITS, normalised, script_of, text_digest
from tasks.windows import Window


@dataclass(frozen=True)
class Sample:
    """A conversation, or a window of a long one: token ids I32 [T], loss mask U8 [T] (1: supervised), and its line in
    ``samples.jsonl``."""

    ids: np.ndarray
    mask: np.ndarray
    line: dict[str, Any]


@dataclass(frozen=True)
class Known:
    """What is known of a conversation before it is tokenised; digests are BLAKE3 of normalised text."""

    id: str
    side: str
    digest: bytes
    first: str
    greedy: bool
    slices: dict[str, str]

    @property
    def hash(self) -> str:
        """The digest of all turns, as it is written."""
        return self.digest.hex()[:HASH_DIGITS]

    def id_digest(self) -> str:
        """How a list of forgotten conversations names this one."""
        return blake3(self.id.encode()).hexdigest()


def name_of(row: dict[str, Any]) -> str | None:
    """The id of a row as text; None where it has none."""
    name = row.get("id")
    if name is None or name == "":
        return None
    if isinstance(name, bool) or not isinstance(name, str | int | float):
        raise Rejected(Reason.BAD_ID)
    return str(name)


def side_of(name: str | None, first: str, held_out: float) -> str:
    """``train`` or ``held_out``, by a hash of the conversation's id, else of its first user turn, normalised."""
    seed = f"id {name}" if name is not None else f"turn {normalised(first)}"
    share = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8]) / 2**64
    return "held_out" if share < held_out else "train"


def known_of(
    row: dict[str, Any], conversation: Conversation | None, text: tuple[str, str], source: str, held_out: float, trusted: bool
) -> Known:
    """What is known of a row. ``text`` stands for a conversation that has ids alone: all of it, and what was asked.

    ``trusted``: the source is this project's own, so that it may say that its answers are greedy.
    """
    name = name_of(row)
    whole, asked = text
    parts = list(_parts(conversation)) if conversation else [whole]
    first = (conversation.first_user() if conversation else asked) or "\x1e".join(parts)
    said = _said(conversation) if conversation else whole
    thinks = conversation.thinks if conversation else THINK_END in whole
    tools = conversation is not None and conversation.uses_tools
    try:
        digest = text_digest(parts)
        return Known(
            id=name if name is not None else "row-" + digest.hex()[:HASH_DIGITS],
            side=side_of(name, first, held_out),
            digest=digest,
            first=text_digest([first]).hex()[:HASH_DIGITS],
            greedy=trusted and row.get("greedy") is True and "answer_ids" in row,
            slices={
                "script": script_of(said),
                "thinking": "on" if thinks else "off",
                "tools": "on" if tools else "off",
                "source": source,
            },
        )
    except UnicodeEncodeError:
        raise Rejected(Reason.SURROGATE) from None


def _parts(conversation: Conversation) -> Iterator[str]:
    for message in conversation.messages:
        yield message.role
        yield from message.texts()


def _said(conversation: Conversation) -> str:
    return "\n".join(message.content for message in conversation.messages if message.role in ("user", "assistant"))


def samples_of(known: Known, ids: np.ndarray, mask: np.ndarray, windows: list[Window], length: str) -> Iterator[Sample]:
    """A sample for each window over the token ids and mask of a conversation whose length is in bucket ``length``."""
    for number, window in enumerate(windows):
        part = mask[window.start : window.end].copy()
        part[: max(0, window.covered - window.start)] = 0
        line = {
            "id": known.id,
            "window": number,
            "side": known.side,
            "supervised": int(part.sum()),
            "hash": known.hash,
            "first": known.first,
            "greedy": known.greedy,
            "slices": {**known.slices, "length": length},
        }
        yield Sample(ids[window.start : window.end], part, line)
