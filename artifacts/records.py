"""Records: key -> references, with the lineage. They outlive the blobs that they name. Aliases name a reference for people."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from artifacts.key import Parts
from artifacts.manifest import Ref
from artifacts.store import write_atomically


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
