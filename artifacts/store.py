"""Content-addressed blobs on the local disk, committed atomically.

``<root>/blobs/ab/<digest>/`` holds an artifact's files and its manifest. A blob appears in three steps: its files are written
and synced under ``<root>/tmp``, the folder is renamed into place, the manifest is renamed into it last. What has no manifest
does not exist.
"""

import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from blake3 import blake3

from artifacts.manifest import MANIFEST_NAME, FileEntry, Manifest, Ref
from errors import UserError


class BlobMissing(Exception):
    """The blob of a reference is not in the store, or is not whole."""


def sync_folder(path: Path) -> None:
    """Make renames and new names in ``path`` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomically(path: Path, data: bytes) -> None:
    """Write ``data`` under a temporary name beside ``path``, sync it and rename it into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


class HashedFile:
    """A binary file that is hashed while it is written."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = open(path, "wb")  # noqa: SIM115 - closed by close()
        self._hasher = blake3()
        self.size = 0

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append ``data``; returns its length in bytes."""
        view = memoryview(data).cast("B")
        self._hasher.update(view)
        self._file.write(view)
        self.size += view.nbytes
        return view.nbytes

    def flush(self) -> None:
        """Hand buffered bytes to the system."""
        self._file.flush()

    def close(self) -> str:
        """Sync the file to the disk and return its BLAKE3."""
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
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
        for sub in {(self.folder / entry.path).parent for entry in entries} | {self.folder}:
            sync_folder(sub)
        manifest = Manifest(kind=self.kind, files=tuple(entries))
        return Sealed(Ref(kind=self.kind, digest=manifest.digest(), facts=dict(facts)), manifest, self.folder)


class Store:
    """The blobs under ``root``; any number of processes of one host may use it at once."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    def folder(self, digest: str) -> Path:
        """Where the blob of ``digest`` lies, or would lie."""
        return self.root / "blobs" / digest[:2] / digest

    def manifest(self, digest: str) -> Manifest:
        """The manifest of a blob; raises ``BlobMissing``."""
        try:
            return Manifest.model_validate_json((self.folder(digest) / MANIFEST_NAME).read_bytes())
        except FileNotFoundError:
            raise BlobMissing(f"blob {digest[:12]} is not in the store {self.root}") from None
        except ValueError:
            raise BlobMissing(f"the manifest of blob {digest[:12]} in {self.root} is damaged") from None

    def open(self, digest: str) -> Path:
        """The folder of a blob whose files all have their recorded size; raises ``BlobMissing``."""
        manifest, folder = self.manifest(digest), self.folder(digest)
        for entry in manifest.files:
            try:
                size = (folder / entry.path).stat().st_size
            except FileNotFoundError:
                raise BlobMissing(f"{entry.path} of blob {digest[:12]} is gone from {self.root}") from None
            if size != entry.size:
                raise BlobMissing(f"{entry.path} of blob {digest[:12]} has {size} bytes instead of {entry.size}")
        return folder

    def has(self, digest: str) -> bool:
        """Whether the blob is there with every file in its recorded size."""
        try:
            self.open(digest)
        except BlobMissing:
            return False
        return True

    @contextmanager
    def workspace(self) -> Iterator[Path]:
        """A private folder on the store's file system, locked while this process lives, removed at the end."""
        folder = self.root / "tmp" / f"{os.getpid()}-{uuid.uuid4().hex}"
        folder.mkdir(parents=True)
        with open(folder / ".lock", "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def commit(self, sealed: Sealed) -> Ref:
        """Move sealed files into place; the manifest goes last. An equal blob that is whole is kept."""
        digest, target = sealed.ref.digest, self.folder(sealed.ref.digest)
        if self.has(digest):
            shutil.rmtree(sealed.folder)
            return sealed.ref
        target.parent.mkdir(parents=True, exist_ok=True)
        self._clear(target)
        try:
            os.rename(sealed.folder, target)
        except OSError:
            if self.has(digest):  # another run was faster
                return sealed.ref
            raise
        sync_folder(target.parent)
        write_atomically(target / MANIFEST_NAME, sealed.manifest.model_dump_json().encode())
        return sealed.ref

    def _clear(self, target: Path) -> None:
        """Put a blob that is not whole out of the way: the manifest goes first, so that it stops existing."""
        if target.exists():
            (target / MANIFEST_NAME).unlink(missing_ok=True)
            shutil.rmtree(target, ignore_errors=True)

    def delete(self, digest: str) -> None:
        """Remove a blob."""
        self._clear(self.folder(digest))

    def sweep(self) -> None:
        """Remove workspaces whose process has died."""
        for folder in (self.root / "tmp").glob("*-*"):
            try:
                with open(folder / ".lock", "rb") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            except FileNotFoundError:
                continue
            except BlockingIOError:
                continue

    def used_bytes(self) -> int:
        """Bytes of all blobs by their manifests."""
        total = 0
        for path in (self.root / "blobs").glob("*/*/" + MANIFEST_NAME):
            total += self.manifest(path.parent.name).size
        return total

    def free_bytes(self) -> int:
        """Bytes that the store's file system still takes."""
        existing = next(p for p in [self.root, *self.root.parents] if p.exists())
        return shutil.disk_usage(existing).free

    def require_room(self, needed: int, max_bytes: int | None, what: str) -> None:
        """Refuse work whose output would not fit the disk or the store's limit."""
        room = self.free_bytes()
        if max_bytes is not None:
            room = min(room, max_bytes - self.used_bytes())
        if needed > room:
            raise UserError(
                f"{what} need {needed:,} bytes and the store {self.root} has room for {max(room, 0):,}: "
                "free space, raise store.max_bytes or take fewer conversations"
            )
