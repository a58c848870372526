"""Records: key -> references, with the lineage. They outlive the blobs that they name."""

from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from pydantic import BaseModel, ConfigDict, Field

from artifacts.disk import checked, unchecked, write_atomically
from artifacts.key import Parts
from artifacts.manifest import Ref

_ONCE = ("synthesis", "training")  # what could not be made again before records said so themselves


class Record(BaseModel):
    """What a node gave. ``parts`` are those of the key; ``lineage`` says how, when and on what it was made.

    ``check`` stands in the file only: the BLAKE3 of its other bytes.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str
    stage: str
    node: str
    parts: Parts
    outputs: dict[str, Ref]
    lineage: dict[str, Any]
    check: str | None = Field(None, exclude=True, repr=False)

    @property
    def reproducible(self) -> bool:
        """Whether the node would give the same bytes again."""
        return bool(self.lineage.get("reproducible", self.stage not in _ONCE))


_held: WeakValueDictionary[tuple[str, int, int, int], Record] = WeakValueDictionary()


def read_record(path: Path) -> Record:
    """The record in a file; ``ValueError`` when it is torn, was changed or does not belong there."""
    record = Record.model_validate_json(unchecked(path.read_bytes()))
    if (record.stage, record.key) != (path.parent.name, path.stem):
        raise ValueError(f"it is the record of {record.stage} {record.key[:12]}")
    return record


class Records:
    """Records under ``<root>/records/<stage>/<key>.json``."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute() / "records"

    def path(self, stage: str, key: str) -> Path:
        """Where the record of ``key`` lies, or would lie."""
        return self.root / stage / f"{key}.json"

    def get(self, stage: str, key: str) -> Record | None:
        """The record of ``key``; a torn or foreign file counts as none. One that somebody holds is not read again: a run walks
        its nodes three times, and there may be ten thousand."""
        path = self.path(stage, key)
        try:
            told = path.stat()
            identity = (str(path), told.st_ino, told.st_mtime_ns, told.st_size)
            return _held.get(identity) or _held.setdefault(identity, read_record(path))
        except (FileNotFoundError, ValueError):
            return None

    def paths(self) -> list[Path]:
        """The files of all records, by stage and key."""
        return sorted(self.root.glob("*/[!.]*.json"))

    def put(self, record: Record) -> None:
        """Write a record durably."""
        write_atomically(self.path(record.stage, record.key), checked(record.model_dump_json(indent=1).encode()))
