"""Writing an artifact: its files are hashed while they are written, into a folder of a workspace."""

import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from blake3 import blake3

from artifacts.disk import sync_folder, telling_full
from artifacts.manifest import MANIFEST_NAME, FileEntry, Manifest, Ref

_AHEAD = 16 << 20  # bytes after which the system is told to begin writing, so that the disk works while the next are hashed
# Bytes after which what is on the disk leaves the page cache: terabytes of states would push the verifier's layers out of it.
# A smaller file stays, for the next stage reads it at once.
_LARGE = 64 << 20


class HashedFile:
    """A binary file that is hashed while it is written. ``UserError`` where the disk is full."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with telling_full(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = open(path, "wb")  # noqa: SIM115 - closed by close()
        self._hasher = blake3()
        self.size = self._begun = self._dropped = 0

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append ``data``; returns its length in bytes."""
        view = memoryview(data).cast("B")
        self._hasher.update(view)
        with telling_full(self.path.parent):
            self._file.write(view)
            self.size += view.nbytes
            if self.size - self._begun >= _AHEAD:
                self._begin_writing()
            if self.size - self._dropped >= _LARGE:
                self._drop()
        return view.nbytes

    def _begin_writing(self) -> None:
        """Linux starts to write a range that is said to be needed no more; pages that are not on the disk yet stay."""
        self._file.flush()
        os.posix_fadvise(self._file.fileno(), self._begun, self.size - self._begun, os.POSIX_FADV_DONTNEED)
        self._begun = self.size

    def _drop(self) -> None:
        """Pages that are on the disk by now leave the cache; the others are tried again next time, at last by ``close``."""
        os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self._dropped = self.size

    def flush(self) -> None:
        """Hand buffered bytes to the system."""
        with telling_full(self.path.parent):
            self._file.flush()

    def close(self) -> str:
        """Sync the file to the disk and return its BLAKE3; a large one is not in the page cache any more."""
        if not self._file.closed:
            with telling_full(self.path.parent):
                try:
                    self._file.flush()
                    os.fsync(self._file.fileno())
                    if self.size >= _LARGE:
                        self._drop()
                finally:
                    self._file.close()
        return self._hasher.hexdigest()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


@dataclass(frozen=True)
class Sealed:
    """Finished, synced files of one artifact in a workspace, with what the store needs to take them in."""

    ref: Ref
    manifest: Manifest
    folder: Path


class ArtifactWriter:
    """Collects the files of one artifact in a folder of a workspace. The store takes them in by ``Store.commit``."""

    def __init__(self, kind: str, workspace: Path) -> None:
        self.kind, self.folder = kind, workspace / uuid.uuid4().hex
        with telling_full(workspace):
            self.folder.mkdir()
        self._open: dict[str, HashedFile] = {}

    def open(self, name: str) -> HashedFile:
        """A new file of the artifact, named by its relative path."""
        if name in self._open or name == MANIFEST_NAME or Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"cannot add file {name!r} to an artifact of kind {self.kind}")
        self._open[name] = HashedFile(self.folder / name)
        return self._open[name]

    def write(self, name: str, data: bytes) -> None:
        """A whole file at once."""
        with self.open(name) as file:
            file.write(data)

    def seal(self, **facts: object) -> Sealed:
        """Close and sync all files; the artifact's reference is known from here on."""
        entries = [FileEntry(path=name, size=f.size, blake3=f.close()) for name, f in sorted(self._open.items())]
        with telling_full(self.folder):
            for sub in {(self.folder / entry.path).parent for entry in entries} | {self.folder}:
                sync_folder(sub)
        manifest = Manifest(kind=self.kind, files=tuple(entries))
        return Sealed(Ref(kind=self.kind, digest=manifest.digest(), facts=dict(facts)), manifest, self.folder)
