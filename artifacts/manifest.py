"""References and manifests: an artifact is named by BLAKE3 over the list of its files."""

import json
from pathlib import Path
from typing import Any

from blake3 import blake3
from pydantic import BaseModel, ConfigDict, field_validator

from artifacts.kinds import check_facts

MANIFEST_NAME = "manifest.json"
_CHUNK = 1 << 20


def canonical_json(value: Any) -> bytes:
    """Bytes of ``value`` as JSON that do not depend on the order of keys, the platform or the Python version."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def digest_bytes(data: bytes) -> str:
    """BLAKE3 of ``data``, 64 hexadecimal digits."""
    return blake3(data).hexdigest()


def digest_file(path: Path) -> str:
    """BLAKE3 of a file's bytes, read in chunks of 1 MiB."""
    hasher = blake3(max_threads=blake3.AUTO)
    hasher.update_mmap(path) if path.stat().st_size >= _CHUNK else hasher.update(path.read_bytes())
    return hasher.hexdigest()


class Ref(BaseModel):
    """A reference to an artifact: small, and a function of content alone (no path, time or run id)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str
    digest: str
    facts: dict[str, Any]

    @field_validator("facts")
    @classmethod
    def _facts_are_known(cls, facts: dict[str, Any], info: Any) -> dict[str, Any]:
        return check_facts(info.data["kind"], facts)


class FileEntry(BaseModel):
    """One file of an artifact; ``size`` in bytes, ``blake3`` in hexadecimal."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str
    size: int
    blake3: str


class Manifest(BaseModel):
    """The files of one artifact, sorted by path."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str
    files: tuple[FileEntry, ...]

    def digest(self) -> str:
        """BLAKE3 over the canonical JSON of the kind and of each file's path, size and BLAKE3."""
        return digest_bytes(canonical_json(self.model_dump(mode="json")))

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(entry.size for entry in self.files)
