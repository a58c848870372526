"""From written turns to token ids and loss mask: text runs are tokenised as a whole, marks are tokens of their own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kimi_adapters.tokenizer import Tokenizer


class Piece(NamedTuple):
    """A part of a turn. ``said``: by the assistant, so supervised. ``mark``: a token of its own, which the vocabulary
    must have; ``tag``: one where the vocabulary has it, and text elsewhere, as a template applied as a whole gives."""

    text: str
    said: bool = False
    mark: bool = False
    tag: bool = False


class Turn(NamedTuple):
    """A turn as a chat format writes it, its header and its end included."""

    role: str
    pieces: list[Piece]


@dataclass(frozen=True)
class Encoded:
    """Token ids, a mask of equal length (1: supervised), the first token and the role of each turn, and the number of
    tokens of each run of text in ``runs`` (start, end)."""

    ids: list[int]
    mask: list[int]
    turns: list[tuple[int, str]]
    runs: list[tuple[int, int]]


class _Run(NamedTuple):
    number: int
    lengths: list[tuple[int, bool]]


def encode_turns(conversations: Sequence[Sequence[Turn]], tokenizer: Tokenizer) -> list[Encoded]:
    """Tokenise conversations together, which is faster than one by one; the result does not depend on the company.

    A token is supervised when it begins inside something said.
    """
    texts: dict[str, int] = {}  # a text that comes again, as system prompts do, is tokenised once
    marks: dict[str, int | None] = {}
    plans = [[(turn.role, _plan(turn.pieces, texts, marks, tokenizer)) for turn in turns] for turns in conversations]
    encodings = tokenizer.encode_batch(list(texts))
    return [_assemble(plan, encodings) for plan in plans]


def _plan(
    pieces: Sequence[Piece], texts: dict[str, int], marks: dict[str, int | None], tokenizer: Tokenizer
) -> list[tuple[int, bool] | _Run]:
    """Marks as (token id, said), and runs of neighbouring text, whose text joins ``texts``."""
    plan: list[tuple[int, bool] | _Run] = []
    waiting: list[Piece] = []

    def close() -> None:
        if waiting:
            text = waiting[0].text if len(waiting) == 1 else "".join([piece.text for piece in waiting])
            number = texts.setdefault(text, len(texts))
            plan.append(_Run(number, [(len(piece.text), piece.said) for piece in waiting]))
            waiting.clear()

    for piece in pieces:
        token: int | None = None
        if piece.mark or piece.tag:
            if piece.text not in marks:
                wanted = piece.mark or tokenizer.has_token(piece.text)
                marks[piece.text] = tokenizer.token_id(piece.text) if wanted else None
            token = marks[piece.text]
        if token is not None:
            close()
            plan.append((token, piece.said))
        elif piece.text:
            waiting.append(piece)
    close()
    return plan


def _assemble(plan: list[tuple[str, list[tuple[int, bool] | _Run]]], encodings: Sequence[Any]) -> Encoded:
    ids: list[int] = []
    mask: list[int] = []
    turns, runs = [], []
    for role, items in plan:
        turns.append((len(ids), role))
        for item in items:
            if not isinstance(item, _Run):
                ids.append(item[0])
                mask.append(int(item[1]))
                continue
            encoding = encodings[item.number]
            start = len(ids)
            ids += encoding.ids
            runs.append((start, len(ids)))
            mask += run_mask(encoding, item.lengths, len(ids) - start)
    return Encoded(ids, mask, turns, runs)


def run_mask(encoding: Any, lengths: list[tuple[int, bool]], count: int) -> list[int]:
    """The mask of a run of ``count`` tokens over pieces of (characters, said)."""
    if len(lengths) == 1:
        return [int(lengths[0][1])] * count
    mask: list[int] = []
    position = 0
    for length, said in lengths[:-1]:
        position += length
        mask += [int(said)] * (_first_token_at(encoding, position, count) - len(mask))
    return mask + [int(lengths[-1][1])] * (count - len(mask))


def _first_token_at(encoding: Any, position: int, count: int) -> int:
    """The first token that begins at or after a character; offsets rise, so this is where the mask may change.

    Asks for single tokens: the list of all offsets costs as much as tokenising.
    """
    token = encoding.char_to_token(position)
    if token is None:  # a character that no token covers, as where a normaliser drops some
        return next((number for number, (start, _) in enumerate(encoding.offsets) if start >= position), count)
    while token < count and encoding.token_to_chars(token)[0] < position:
        token += 1
    return int(token)
