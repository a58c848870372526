"""Long conversations in windows of at most the length that is trained on."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

LENGTHS = ((512, "<512"), (2048, "<2k"), (8192, "<8k"), (32768, "<32k"))


class Window(NamedTuple):
    """Tokens ``start`` to ``end``; those from ``covered`` on are supervised here, those before it in an earlier window."""

    start: int
    end: int
    covered: int


def length_bucket(tokens: int) -> str:
    """The bucket of a conversation's length in tokens."""
    return next((name for limit, name in LENGTHS if tokens < limit), ">=32k")


def cut(mask: np.ndarray, turns: Sequence[tuple[int, str]], max_length: int) -> tuple[list[Window], int]:
    """Windows over a conversation with loss mask U8 [T], and how many supervised tokens are in none of them.

    ``turns`` gives the first token and the role of each turn. A window starts at a turn and runs to ``max_length`` tokens; the
    next starts at the user turn before the first supervised token that is not covered yet. Where that token would not be
    inside, the rest of its span is lost. A token is supervised in one window only. The first token is never predicted.
    """
    if len(mask) <= max_length:
        return [Window(0, len(mask), 0)], 0
    supervised = np.flatnonzero(mask[1:]) + 1
    user_turns = np.array([start for start, role in turns if role == "user"] or [0])
    windows: list[Window] = []
    covered = lost = 0
    while (place := int(np.searchsorted(supervised, covered))) < len(supervised):
        first = int(supervised[place])
        before = int(np.searchsorted(user_turns, first, side="right"))
        start = 0 if not windows and first < max_length else int(user_turns[before - 1]) if before else 0
        end = min(start + max_length, len(mask))
        if first < end:
            windows.append(Window(start, end, covered))
            covered = end
            continue
        silent = np.flatnonzero(mask[first:] == 0)
        covered = first + int(silent[0]) if len(silent) else len(mask)
        lost += covered - first
    return windows, lost
