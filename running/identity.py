"""Digests of files outside the store, remembered by file identity so that a large file is hashed once."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from artifacts.disk import checked, unchecked, write_atomically
from artifacts.manifest import canonical_json, digest_bytes, digest_file

_YOUNG = 2.0  # seconds: a file changed this recently could change again within one tick of its time stamp


class FileMemo:
    """Remembers what was computed from files, by real path, device, inode, size and time of change."""

    def __init__(self, state: Path) -> None:
        self._folder = state / "remembered"

    def recall(self, what: str, files: list[Path], compute: Callable[[], Any]) -> Any:
        """``compute()`` (JSON), or what it gave when the files were the same."""
        stats = [path.stat() for path in files]
        identity = [[str(p.resolve()), s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns] for p, s in zip(files, stats, strict=True)]
        path = self._folder / digest_bytes(canonical_json([what, identity]))
        try:
            return json.loads(unchecked(path.read_bytes()))["value"]
        except (FileNotFoundError, ValueError, LookupError, TypeError):
            value = compute()
        if all(time.time() - s.st_mtime > _YOUNG for s in stats):
            write_atomically(path, checked(canonical_json({"value": value})))
        return value

    def digest(self, path: Path) -> str:
        """BLAKE3 of a file's bytes."""
        return str(self.recall("bytes", [path], lambda: digest_file(path)))
