"""How many bytes the blobs take, without reading 5,000 manifests at every commit."""

import os
import threading
import time
from pathlib import Path

from artifacts.manifest import MANIFEST_NAME

_YOUNG = 1_000_000_000  # ns: a folder changed this recently could change again within one tick of its time stamp


class Usage:
    """The bytes of all blobs; a prefix folder is counted again only when a blob came into it or left it, whoever did that.

    Files of a blob that has no manifest count, too: they take the same room.
    """

    def __init__(self, blobs: Path) -> None:
        self._blobs = blobs
        self._known: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()

    def total(self) -> int:
        """Bytes of all files of blobs, manifests aside."""
        with self._lock:
            try:
                prefixes = [entry for entry in os.scandir(self._blobs) if entry.is_dir()]
            except FileNotFoundError:
                return 0
            return sum(self._of_prefix(entry) for entry in prefixes)

    def _of_prefix(self, entry: "os.DirEntry[str]") -> int:
        changed = os.stat(entry.path).st_mtime_ns
        known = self._known.get(entry.name)
        if known is None or known[0] != changed:
            known = (changed if time.time_ns() - changed > _YOUNG else -1, folder_bytes(entry.path))
            self._known[entry.name] = known
        return known[1]


def folder_bytes(folder: str | Path) -> int:
    """Bytes of the files under a folder, manifests aside; what vanishes meanwhile counts as nothing."""
    total = 0
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return 0
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            total += folder_bytes(entry.path)
        elif not entry.name.endswith(MANIFEST_NAME):
            try:
                total += entry.stat(follow_symlinks=False).st_size
            except FileNotFoundError:
                continue
    return total
