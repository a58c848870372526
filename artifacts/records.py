"""Records: key -> references, with the lineage. They outlive the blobs that they name. Aliases name a reference for people."""

import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from artifacts.key import Parts, differing
from artifacts.manifest import Ref
from artifacts.store import write_atomically

_KIN = 256  # newest records of a stage that are compared when a miss is explained


class Record(BaseModel):
    """What a node gave. ``parts`` are those of the key; ``lineage`` says how, when and on what it was made."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str
    stage: str
    node: str
    parts: Parts
    outputs: dict[str, Ref]
    lineage: dict[str, Any]


class Records:
    """Records under ``<root>/records/<stage>/<key>.json``."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute() / "records"
        self._recent: dict[str, list[Record]] = {}

    def path(self, stage: str, key: str) -> Path:
        """Where the record of ``key`` lies, or would lie."""
        return self.root / stage / f"{key}.json"

    def get(self, stage: str, key: str) -> Record | None:
        """The record of ``key``; a torn or foreign file counts as none."""
        try:
            record = Record.model_validate_json(self.path(stage, key).read_bytes())
        except (FileNotFoundError, ValidationError):
            return None
        return record if record.key == key and record.stage == stage else None

    def put(self, record: Record) -> None:
        """Write a record durably."""
        write_atomically(self.path(record.stage, record.key), record.model_dump_json(indent=1).encode())
        self._recent.pop(record.stage, None)

    def recent(self, stage: str) -> list[Record]:
        """The newest records of a stage, newest first."""
        if stage not in self._recent:
            folder = self.root / stage
            found = [(e.stat().st_mtime_ns, e.name) for e in os.scandir(folder)] if folder.is_dir() else []
            names = [name for _, name in sorted(found, reverse=True) if name.endswith(".json")][:_KIN]
            records = [self.get(stage, name.removesuffix(".json")) for name in names]
            self._recent[stage] = [record for record in records if record is not None]
        return self._recent[stage]

    def explain(self, stage: str, parts: Parts) -> list[str]:
        """The parts that differ from the nearest kin: the record of this stage that shares most. ``[]`` = no kin."""
        kindred = (record.parts for record in self.recent(stage) if record.parts.get("entry") == parts.get("entry"))
        kin = min((differing(parts, other) for other in kindred), key=len, default=None)
        return ["first run"] if kin is None else kin

    def rate(self, stage: str) -> float | None:
        """Median tokens a second over the newest records of a stage; None where none was measured."""
        rates = sorted(
            record.lineage["tokens"] / record.lineage["seconds"]
            for record in self.recent(stage)
            if record.lineage.get("tokens") and record.lineage.get("seconds")
        )
        return rates[len(rates) // 2] if rates else None
