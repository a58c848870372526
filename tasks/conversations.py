"""A file of conversations as samples: every row ends as a conversation, a duplicate, a reject or forgotten."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kimi_adapters import chat_rows
from kimi_adapters.chat_encoding import Encoded, Turn, encode_turns
from kimi_adapters.chat_format import ChatFormat
from kimi_adapters.chat_masks import loss_mask
from kimi_adapters.chat_messages import Conversation
from kimi_adapters.chat_reasons import Reason, Rejected
from kimi_adapters.media_tokens import placeholder_ids
from kimi_adapters.tokenizer import Tokenizer
from tasks import served_ids
from tasks.json_rows import loads
from tasks.samples import Known, Sample, known_of, samples_of
from tasks.seen import Seen
from tasks.served_ids import Served
from tasks.source_files import Row, rows
from tasks.windows import cut, length_bucket

COLUMNS = (*chat_rows.KEYS, *served_ids.KEYS, "greedy")
_BATCH_ROWS, _BATCH_CHARACTERS = 512, 1 << 20
_SEEN_OR_HEARD = (Reason.IMAGE, Reason.AUDIO)  # served ids do not hold it
_ROUND_TRIPS = 16  # one conversation in so many is decoded and encoded again


@dataclass(frozen=True)
class Choices:
    """What the settings say of reading. ``forgotten``: digests of the ids to leave out; ``trusted``: a source of our own."""

    max_length: int
    held_out: float
    source: str = ""
    forgotten: frozenset[str] = frozenset()
    trusted: bool = False
    limit: int | None = None


@dataclass
class Counts:
    """Where the rows went. ``supervised`` and ``lost`` (by length bucket) are tokens, the lost ones among the first."""

    rows: int = 0
    conversations: int = 0
    samples: int = 0
    duplicates: int = 0
    forgotten: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    supervised: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    tried: int = 0
    same: int = 0

    @property
    def rejects(self) -> int:
        """Rows that were rejected."""
        return sum(self.reasons.values())

    def facts(self) -> dict[str, Any]:
        """The facts of a ``rejects`` artifact; the rows must add up."""
        assert self.rows == self.conversations + self.duplicates + self.rejects + self.forgotten, "rows do not add up"
        return {
            "rows": self.rows,
            "conversations": self.conversations,
            "samples": self.samples,
            "duplicates": self.duplicates,
            "rejects": self.rejects,
            "forgotten": self.forgotten,
            "reasons": dict(sorted(self.reasons.items())),
            "supervised": self.supervised,
            "lost_supervised": sum(self.lost.values()),
            "lost_by_length": dict(sorted(self.lost.items())),
            "round_trip": round(self.same / self.tried, 6) if self.tried else 1.0,
        }


class Gap(NamedTuple):
    """The place of something forgotten: it counts towards the cutting of shards, so that no other shard moves."""

    tokens: int


class _Ready(NamedTuple):
    """A row whose tokens come next: written turns, or ids as served."""

    number: int
    known: Known
    turns: list[Turn]
    served: Served | None

    def size(self) -> int:
        """About how much it holds, in characters."""
        text = sum(len(piece.text) for turn in self.turns for piece in turn.pieces)
        return text + (4 * len(self.served.ids) if self.served else 0)


_Waiting = _Ready | tuple[int, Reason] | Gap


class Reader:
    """Reads one file. ``reject`` hears the number and the reason of each row that is rejected, in order."""

    def __init__(
        self, tokenizer: Tokenizer, form: ChatFormat, choices: Choices, reject: Callable[[int, Reason], None] | None = None
    ) -> None:
        self._tokenizer, self._form, self._choices = tokenizer, form, choices
        self._reject = reject or (lambda number, reason: None)
        self._vocabulary = max(tokenizer.vocab_size, *(token + 1 for token in tokenizer.special_ids() or [0]))
        self._placeholders = placeholder_ids(tokenizer)
        self._seen = Seen()
        self.counts = Counts()

    def samples(
        self, path: Path, digest: str | None = None, progress: Callable[[int], None] = lambda done: None
    ) -> Iterator[Sample | Gap]:
        """The samples in file order, and gaps where something was forgotten. ``UserError`` when the bytes are not those of
        ``digest``."""
        batch: list[_Waiting] = []
        size = 0
        for row in rows(path, digest, COLUMNS, self._choices.limit, progress):
            self.counts.rows += 1
            waiting = self._prepare(row)
            batch += waiting
            size += sum(one.size() for one in waiting if isinstance(one, _Ready))
            if len(batch) >= _BATCH_ROWS or size >= _BATCH_CHARACTERS:
                yield from self._finish(batch)
                batch, size = [], 0
        yield from self._finish(batch)

    def _prepare(self, row: Row) -> list[_Waiting]:
        try:
            if row.reason is not None:
                raise Rejected(row.reason)
            if not isinstance(row.values, dict):
                raise Rejected(Reason.NOT_AN_OBJECT)
            if self._choices.trusted and "forgotten_tokens" in row.values:
                return self._taken_out(row.values)
            return [self._ready(row.number, row.values)]
        except Rejected as rejected:
            return [(row.number, rejected.reason)]

    def _taken_out(self, row: dict[str, Any]) -> list[_Waiting]:
        """The place of a row that was taken out of a source of ours: its token counts, window by window."""
        self.counts.forgotten += 1
        tokens = row["forgotten_tokens"]
        return [Gap(int(count)) for count in (tokens if isinstance(tokens, list) else [tokens])]

    def _ready(self, number: int, row: dict[str, Any]) -> _Ready:
        served = served_ids.served_ids(row, self._vocabulary)
        if served is not None and not self._placeholders.isdisjoint(served.ids):
            raise Rejected(Reason.IMAGE)
        conversation = self._conversation(row, served)
        turns: list[Turn] = []
        text = ("", "")
        if served is None:
            assert conversation is not None
            if not any(message.role == "assistant" for message in conversation.messages):
                raise Rejected(Reason.NO_ASSISTANT)
            self._form.check(conversation)
            turns = self._form.turns(conversation)
            _require_text(piece.text for turn in turns for piece in turn.pieces)
        elif conversation is None:
            asked = served.ids[: served.mask.index(1)] if 1 in served.mask else served.ids
            text = (self._tokenizer.decode(served.ids, keep_special=True), self._tokenizer.decode(asked, keep_special=True))
        chosen = self._choices
        known = known_of(row, conversation, text, chosen.source, chosen.held_out, chosen.trusted)
        return _Ready(number, known, turns, served)

    def _conversation(self, row: dict[str, Any], served: Served | None) -> Conversation | None:
        """The text of a row; where ids were served it may be missing, or be none that we know. An image is a reject always."""
        try:
            conversation = chat_rows.conversation_of(row, loads)
            _require_text(text for message in conversation.messages for text in message.texts())
            return conversation
        except Rejected as rejected:
            if served is None or rejected.reason in _SEEN_OR_HEARD:
                raise
            return None

    def _finish(self, batch: list[_Waiting]) -> Iterator[Sample | Gap]:
        """Tokenise what waits, and tell of everything in the order of the file."""
        written = [one for one in batch if isinstance(one, _Ready) and one.served is None]
        encoded = encode_turns([one.turns for one in written], self._tokenizer)
        self._try_round_trips(written, encoded)
        tokens = {one.number: found for one, found in zip(written, encoded, strict=True)}
        for one in batch:
            if isinstance(one, Gap):
                yield one
            elif isinstance(one, _Ready):
                if one.served is not None:
                    yield from self._cut(one, *one.served, [])
                else:
                    found = tokens[one.number]
                    yield from self._cut(one, found.ids, loss_mask(found), found.turns)
            else:
                self._reject_row(*one)

    def _cut(
        self, ready: _Ready, token_ids: list[int], loss: list[int], turns: list[tuple[int, str]]
    ) -> list[Sample] | list[Gap]:
        ids, mask = np.asarray(token_ids, np.int32), np.asarray(loss, np.uint8)
        if not mask[1:].any():  # the first token is never predicted
            self._reject_row(ready.number, Reason.NOTHING_SUPERVISED)
            return []
        windows, lost = cut(mask, turns, self._choices.max_length)
        # Only what could be used makes a later row its duplicate; what is forgotten does, so that no other row moves.
        if windows and not self._seen.add(ready.known.digest):
            self.counts.duplicates += 1
            return []
        if windows and self._choices.forgotten and ready.known.id_digest() in self._choices.forgotten:
            self.counts.forgotten += 1
            return [Gap(window.end - window.start) for window in windows]
        bucket = length_bucket(len(ids))
        self.counts.supervised += int(mask.sum())
        if lost:
            self.counts.lost[bucket] += lost
        if not windows:
            self._reject_row(ready.number, Reason.TOO_LONG)
            return []
        self.counts.conversations += 1
        self.counts.samples += len(windows)
        return list(samples_of(ready.known, ids, mask, windows, bucket))

    def _reject_row(self, number: int, reason: Reason) -> None:
        self.counts.reasons[reason.value] += 1
        self._reject(number, reason)

    def _try_round_trips(self, written: list[_Ready], encoded: list[Encoded]) -> None:
        """Whether text that was tokenised here gives the same ids when it is decoded and tokenised again, for a share of the
        conversations that their digests choose."""
        chosen = [found for one, found in zip(written, encoded, strict=True) if one.known.digest[0] % _ROUND_TRIPS == 0]
        runs = [[part.encoding.ids for part in found.parts if part.encoding] for found in chosen]
        texts = [self._tokenizer.decode(ids, keep_special=True) for one in runs for ids in one]
        again = iter(self._tokenizer.encode_batch(texts))
        self.counts.tried += len(runs)
        self.counts.same += sum(one == [next(again).ids for _ in one] for one in runs)


def _require_text(texts: Iterable[str]) -> None:
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise Rejected(Reason.SURROGATE) from None
