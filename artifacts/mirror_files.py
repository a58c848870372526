"""Single files to and from a mirror: each is checked when it has arrived, on either side.

Going out, the size is compared and then the checksum that S3 gives: its ETag, MD5 of the file or of the MD5s of its parts,
whose size we choose. Where that says nothing (another storage, encryption by a key service) or something else, the file is
read back and its BLAKE3 compared: a second transfer, and the only check that every storage allows. Coming in, BLAKE3 decides.
"""

import hashlib
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from blake3 import blake3

from artifacts.manifest import FileEntry

PART = 32 << 20  # bytes of one part of a large upload: memory is 2 parts for each file on its way
CHUNK = 8 << 20  # bytes of one request of a download; divides PART
_ATTEMPTS = 2
_S3 = {"s3", "s3a"}
_WHOLE_PUTS = _S3 | {"gs", "gcs", "az", "abfs", "adl", "memory"}  # an object appears complete or not at all


class Damaged(Exception):
    """A file does not have the bytes that its manifest names; the message says which and where."""


class Interrupted(Exception):
    """The run ended while a file was on its way."""


class Sink(Protocol):
    """What takes the bytes of a file."""

    def write(self, data: bytes, /) -> object:
        """Append ``data``."""
        ...


@dataclass(frozen=True)
class Checksums:
    """BLAKE3 of a file and the ETags that S3 may give an undamaged copy of it."""

    blake3: str
    etags: frozenset[str]

    @classmethod
    def of(cls, path: Path) -> "Checksums":
        """Read a file once."""
        hasher, whole = blake3(), hashlib.md5(usedforsecurity=False)
        parts: list[Any] = []
        with open(path, "rb") as file:
            while data := file.read(CHUNK):
                if file.tell() - len(data) == len(parts) * PART:
                    parts.append(hashlib.md5(usedforsecurity=False))
                for each in (hasher, whole, parts[-1]):
                    each.update(data)
        of_parts = hashlib.md5(b"".join(part.digest() for part in parts), usedforsecurity=False).hexdigest()
        return cls(hasher.hexdigest(), frozenset({whole.hexdigest(), f"{of_parts}-{len(parts)}"}))


class Carrier:
    """Moves files over one fsspec file system. ``stopped`` ends an upload at its next part."""

    def __init__(self, fs: Any) -> None:
        self.fs = fs
        self.stopped = threading.Event()
        protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
        self._s3, self._whole_puts = bool(protocols & _S3), bool(protocols & _WHOLE_PUTS)

    def send(self, local: Path, remote: str, entry: FileEntry) -> None:
        """Put a file and check its arrival, twice at most; ``Damaged`` names the side that is damaged."""
        known = Checksums.of(local)
        if known.blake3 != entry.blake3:
            raise Damaged(f"{local} does not have the bytes that were written")
        for _ in range(_ATTEMPTS):
            self._put(local, remote)
            if self._arrived(remote, entry, known):
                return
        raise Damaged(f"{remote} does not have the bytes that were sent")

    def send_bytes(self, data: bytes, remote: str) -> None:
        """Put a small file and read it back."""
        for _ in range(_ATTEMPTS):
            if self._whole_puts:
                self.fs.pipe_file(remote, data)
            else:
                with self._aside(remote) as name:
                    self.fs.pipe_file(name, data)
            if self.fs.cat_file(remote) == data:
                return
        raise Damaged(f"{remote} does not have the bytes that were sent")

    def fetch(self, remote: str, entry: FileEntry, into: Sink) -> None:
        """Write a file's bytes to ``into`` by requests of 8 MiB; ``Damaged`` where they are others or too few."""
        size = self.fs.info(remote)["size"]
        if size != entry.size:
            raise Damaged(f"{remote} has {size} bytes instead of {entry.size}")
        hasher = blake3()
        for start in range(0, entry.size, CHUNK):
            data = self.fs.cat_file(remote, start=start, end=min(start + CHUNK, entry.size))
            hasher.update(data)
            into.write(data)
        if hasher.hexdigest() != entry.blake3:
            raise Damaged(f"{remote} does not have the bytes that its manifest names")

    def _put(self, local: Path, remote: str) -> None:
        if self._s3:
            self.fs.put_file(str(local), remote, chunksize=PART, max_concurrency=2, callback=self._watch())
        elif self._whole_puts:
            self.fs.put_file(str(local), remote, callback=self._watch())
        else:
            with self._aside(remote) as name:
                self.fs.put_file(str(local), name, callback=self._watch())

    @contextmanager
    def _aside(self, remote: str) -> Iterator[str]:
        """A temporary name that becomes ``remote`` when the bytes are there: a killed copy leaves no file of that name."""
        self.fs.makedirs(remote.rpartition("/")[0], exist_ok=True)
        name = f"{remote}.{uuid.uuid4().hex}.part"
        yield name
        self.fs.mv(name, remote)

    def _arrived(self, remote: str, entry: FileEntry, known: Checksums) -> bool:
        info = self.fs.info(remote)
        if info["size"] != entry.size:
            return False
        if self._s3 and str(info.get("ETag", "")).strip('"') in known.etags:
            return True
        try:
            self.fetch(remote, entry, _Nowhere())
        except Damaged:
            return False
        return True

    def _watch(self) -> Any:
        from fsspec.callbacks import Callback

        stopped = self.stopped

        class Watch(Callback):
            def relative_update(self, inc: int = 1) -> None:
                if stopped.is_set():
                    raise Interrupted("the run ended")

        return Watch()


class _Nowhere:
    def write(self, data: bytes, /) -> object:
        """Drop ``data``."""
        return len(data)
