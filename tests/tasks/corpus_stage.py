"""Runs the corpus stage's own computation over a file, without a flow around it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from artifacts.manifest import digest_file
from artifacts.writer import Sealed
from running.job import Job, read_outputs
from tasks import corpus
from tasks.formats import read_masks, read_tokens

SETTINGS: dict[str, Any] = {
    "chat_format": "smollm2",
    "max_length": 200,
    "shard_tokens": 300,
    "held_out": 0.25,
    "limit": None,
    "source": "a",
    "forgotten": [],
}


@dataclass
class Made:
    """The outputs of one run."""

    outputs: dict[str, Sealed]

    def digests(self, prefix: str) -> list[str]:
        """Digests of the outputs ``<prefix>.<n>``, in the order of n."""
        count = sum(name.startswith(prefix + ".") for name in self.outputs)
        return [self.outputs[f"{prefix}.{number}"].ref.digest for number in range(count)]

    @property
    def facts(self) -> dict[str, Any]:
        return self.outputs["rejects"].ref.facts

    def samples(self) -> list[dict[str, Any]]:
        """The lines of all ``samples.jsonl``, and with each its token ids and mask."""
        found = []
        for number in range(len(self.digests("ids"))):
            ids, offsets = read_tokens(self.outputs[f"ids.{number}"].folder)
            mask, lines = read_masks(self.outputs[f"masks.{number}"].folder)
            assert len(ids) == len(mask) == offsets[-1] and len(lines) == len(offsets) - 1
            for line, start, end in zip(lines, offsets[:-1], offsets[1:], strict=True):
                found.append({**line, "ids": ids[start:end].tolist(), "mask": mask[start:end].tolist()})
        return found

    def files(self) -> list[bytes]:
        """Everything that was written."""
        return [path.read_bytes() for one in self.outputs.values() for path in one.folder.iterdir()]


def run_stage(source: Path, verifier: Path, folder: Path, **settings: Any) -> Made:
    """The stage's outputs over a source: a file, or an artifact's folder."""
    workspace = folder / uuid4().hex
    workspace.mkdir()
    events: list[dict[str, Any]] = []
    digests = {"source": digest_file(source) if source.is_file() else "", "tokenizer": ""}
    job = Job(
        key="key",
        label="corpus",
        settings={**SETTINGS, **settings},
        knobs={},
        paths={"source": source, "tokenizer": verifier},
        digests=digests,
        scratch=workspace,
        device="cpu",
        threads=1,
        workspace=workspace,
        send=events.append,
    )
    corpus.compute(job)
    json.dumps(events)
    return Made(read_outputs(next(event for event in events if event["event"] == "outputs")))
