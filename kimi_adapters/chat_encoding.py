"""From written turns to token ids: text runs are tokenised as a whole, marks are tokens of their own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tokenizers import Encoding

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


class Part(NamedTuple):
    """Tokens ``start`` to ``end`` of a conversation, made together: a mark (``encoding`` is None) or a run of text.
    ``lengths`` gives the characters of each piece of it, and whether the piece is said."""

    start: int
    end: int
    lengths: list[tuple[int, bool]]
    encoding: Encoding | None


@dataclass(frozen=True)
class Encoded:
    """Token ids, the first token and the role of each turn, and the parts in order; the parts leave no token out."""

    ids: list[int]
    turns: list[tuple[int, str]]
    parts: list[Part]


class _Run(NamedTuple):
    number: int
    lengths: list[tuple[int, bool]]


def encode_turns(conversations: Sequence[Sequence[Turn]], tokenizer: Tokenizer) -> list[Encoded]:
    """Tokenise conversations together, which is faster than one by one; the result does not depend on the company."""
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


def _assemble(plan: list[tuple[str, list[tuple[int, bool] | _Run]]], encodings: Sequence[Encoding]) -> Encoded:
    ids: list[int] = []
    turns, parts = [], []
    for role, items in plan:
        turns.append((len(ids), role))
        for item in items:
            start = len(ids)
            if isinstance(item, _Run):
                encoding = encodings[item.number]
                ids += encoding.ids
                parts.append(Part(start, len(ids), item.lengths, encoding))
            else:
                ids.append(item[0])
                parts.append(Part(start, start + 1, [(1, item[1])], None))
    return Encoded(ids, turns, parts)
