"""What the corpus tests share: a reader over rows that a test writes, without the machinery of a stage around it."""

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from kimi_adapters.chat import FORMATS
from kimi_adapters.chat_reasons import Reason
from kimi_adapters.tokenizer import Tokenizer
from tasks.conversations import Choices, Counts, Gap, Reader
from tasks.samples import Sample

TALK: dict[str, Any] = {
    "id": "x",
    "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello there."}],
}


@cache
def tokenizer_of(verifier: Path) -> Tokenizer:
    """The tokenizer of a verifier, read once a session."""
    return Tokenizer(verifier)


@dataclass
class Read:
    """What came of a file."""

    samples: list[Sample] = field(default_factory=list)
    gaps: list[int] = field(default_factory=list)
    rejects: list[tuple[int, str]] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)


def write_rows(path: Path, rows: list[Any]) -> Path:
    """Write rows as JSONL; a text or bytes is a line as it stands."""
    lines = [row if isinstance(row, bytes) else (row if isinstance(row, str) else json.dumps(row)).encode() for row in rows]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def read_file(path: Path, verifier: Path, form: str = "smollm2", digest: str | None = None, **choices: Any) -> Read:
    """Read a file; the counts are checked to add up."""
    found = Read()

    def reject(number: int, reason: Reason) -> None:
        found.rejects.append((number, reason.value))

    chosen = Choices(**{"max_length": 200, "held_out": 0.25, **choices})
    reader = Reader(tokenizer_of(verifier), FORMATS[form], chosen, reject)
    for one in reader.samples(path, digest):
        if isinstance(one, Gap):
            found.gaps.append(one.tokens)
        else:
            found.samples.append(one)
    found.counts = reader.counts
    facts = reader.counts.facts()
    assert facts["rejects"] == len(found.rejects) and facts["samples"] == len(found.samples)
    return found
