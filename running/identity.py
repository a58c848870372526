"""Digests of files outside the store, remembered by file identity so that a large file is hashed once."""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from artifacts.disk import checked, unchecked, write_atomically
from artifacts.manifest import canonical_json, digest_bytes
from artifacts.verify import FILES_AT_ONCE, digest_of_file
from running.progress import BytesLog

_YOUNG = 2.0  # seconds: a file changed this recently could change again within one tick of its time stamp

Told = Callable[[int], None]  # hears of bytes that were read


class FileMemo:
    """Remembers what was computed from files, by real path, device, inode, size and both times of change.

    The time of the inode's change is among them because `cp -p` and `rsync` set the other one as they like.

    Reading goes before any key that depends on it, so nothing can run meanwhile that the bytes would name; what takes
    longer than a few seconds is said in log lines, in a plan, too.
    """

    def __init__(self, state: Path) -> None:
        self._folder = state / "remembered"

    def recall(self, what: str, files: list[Path], compute: Callable[[Told], Any]) -> Any:
        """``compute(told)`` (JSON), or what it gave when the files were the same."""
        place, modified = self._place(what, files)
        value = self._known(place)
        if value is None:
            value = compute(BytesLog(f"reading {files[-1].parent}", sum(file.stat().st_size for file in files)).told)
            self._keep(place, modified, value)
        return value

    def digest(self, path: Path) -> str:
        """BLAKE3 of a file's bytes."""
        return self.digests([path])[0]

    def digests(self, paths: list[Path]) -> list[str]:
        """BLAKE3 of the bytes of each file; those not known are read several at once."""
        places = [self._place("bytes", [path]) for path in paths]
        known = [self._known(place) for place, _ in places]
        unknown = [number for number, digest in enumerate(known) if digest is None]
        if unknown:
            log = BytesLog(f"reading {paths[unknown[0]].parent}", sum(paths[number].stat().st_size for number in unknown))
            with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
                found = pool.map(lambda number: digest_of_file(paths[number], log.told), unknown)
                for number, digest in zip(unknown, found, strict=True):
                    known[number] = digest
                    self._keep(*places[number], digest)
        return [str(digest) for digest in known]

    def _place(self, what: str, files: list[Path]) -> tuple[Path, float]:
        """Where the value lies that the files gave, and when the youngest of them was changed."""
        stats = [path.stat() for path in files]
        identity = [
            [str(p.resolve()), s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns]
            for p, s in zip(files, stats, strict=True)
        ]
        return self._folder / digest_bytes(canonical_json([what, identity])), max(stat.st_mtime for stat in stats)

    def _known(self, place: Path) -> Any:
        """What is remembered there; None where nothing is, or where its bytes are not those that were written."""
        try:
            return json.loads(unchecked(place.read_bytes()))["value"]
        except (FileNotFoundError, ValueError, LookupError, TypeError):
            return None

    def _keep(self, place: Path, modified: float, value: Any) -> None:
        if time.time() - modified > _YOUNG:
            write_atomically(place, checked(canonical_json({"value": value})))
