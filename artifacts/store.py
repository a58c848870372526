"""Content-addressed blobs on the local disk, committed atomically.

``<root>/blobs/ab/<digest>/`` holds an artifact's files and its manifest. A blob appears in three steps: its files are written
and synced under ``<root>/tmp``, the folder is renamed into place, the manifest is renamed into it last. What has no manifest
does not exist.
"""

import fcntl
import logging
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from artifacts.disk import locked, sync_folder, telling_full, write_synced
from artifacts.manifest import MANIFEST_NAME, Manifest, Ref
from artifacts.usage import Usage, folder_bytes
from artifacts.writer import Sealed
from errors import UserError

log = logging.getLogger("eyas")
_PENDING = f".{MANIFEST_NAME}"  # the manifest's name until its blob is in place
_HALF_MADE = 3600.0  # seconds after which a workspace that got no lock is nobody's


class BlobMissing(Exception):
    """The blob of a reference is not in the store, or is not whole."""


class Store:
    """The blobs under ``root``; any number of processes of one host may use it at once.

    ``max_bytes`` bounds what the blobs take and what was put aside as damaged; files of workspaces, which no commit has taken
    in yet, come on top.
    """

    def __init__(self, root: Path, max_bytes: int | None = None) -> None:
        self.root, self.max_bytes = root.absolute(), max_bytes
        self._usage = Usage(self.root / "blobs")

    def folder(self, digest: str) -> Path:
        """Where the blob of ``digest`` lies, or would lie."""
        return self.root / "blobs" / digest[:2] / digest

    def folders(self) -> Iterator[Path]:
        """The folders of all blobs, in the order of their digests; some may have no manifest."""
        for prefix in sorted((self.root / "blobs").glob("*")):
            yield from sorted(prefix.glob("*"))

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
    def in_use(self) -> Iterator[None]:
        """What a run holds from beginning to end: nothing is collected meanwhile. Waits while a collection goes on."""
        path = self.root / ".in_use"
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(path, shared=True, wait=False))
            except BlockingIOError:
                log.info("store: blobs are being removed, waiting for that to end")
                stack.enter_context(locked(path, shared=True))
            yield

    @contextmanager
    def alone(self, what: str) -> Iterator[None]:
        """What removes blobs holds; ``UserError`` while a run uses the store."""
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.root / ".in_use", wait=False))
            except BlockingIOError:
                raise UserError(f"a run uses the store {self.root}: start `eyas {what}` again when it has ended") from None
            yield

    @contextmanager
    def workspace(self) -> Iterator[Path]:
        """A private folder on the store's file system, locked while this process lives, removed at the end."""
        name = uuid.uuid4().hex
        new, folder = self.root / "tmp" / f"new.{name}", self.root / "tmp" / f"{os.getpid()}-{name}"
        with telling_full(self.root), ExitStack() as stack:
            new.mkdir(parents=True)
            lock = stack.enter_context(open(new / ".lock", "wb"))
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.rename(new, folder)  # under a name that ``sweep`` looks at only when it is locked
            stack.pop_all()
        with lock:
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def commit(self, sealed: Sealed) -> Ref:
        """Move sealed files into place; the manifest goes last. An equal blob that is whole is kept.

        ``UserError`` where the disk or ``max_bytes`` leaves no room; the store is then as it was.
        """
        digest, target = sealed.ref.digest, self.folder(sealed.ref.digest)
        with telling_full(self.root), self._changing(digest):
            if self.has(digest):
                shutil.rmtree(sealed.folder, ignore_errors=True)
                return sealed.ref
            write_synced(sealed.folder / _PENDING, sealed.manifest.model_dump_json().encode())  # the last write that needs room
            self._make_prefix(target.parent)
            self._clear(target)
            with self._room(sealed):
                os.rename(sealed.folder, target)
            sync_folder(target.parent)
            os.replace(target / _PENDING, target / MANIFEST_NAME)
            sync_folder(target)
        return sealed.ref

    def _changing(self, digest: str) -> AbstractContextManager[None]:
        """One process or thread at a time takes in or removes a blob."""
        return locked(self.root / "locks" / digest[:2])

    def _make_prefix(self, folder: Path) -> None:
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            sync_folder(folder.parent)

    @contextmanager
    def _room(self, sealed: Sealed) -> Iterator[None]:
        """Let nobody else in between counting and adding."""
        if self.max_bytes is None:
            yield
            return
        with locked(self.root / "locks" / "room"):
            used, size = self.used_bytes(), sealed.manifest.size
            if used + size > self.max_bytes:
                raise UserError(
                    f"{sealed.ref.kind} {sealed.ref.digest[:12]} of {size:,} bytes would take the store {self.root} of "
                    f"{used:,} past store.max_bytes = {self.max_bytes:,}: see what `eyas gc SETTINGS.yaml` would free, or "
                    "raise the limit"
                )
            yield

    def _clear(self, target: Path) -> None:
        """Put a blob that is not whole out of the way: the manifest goes first, so that it stops existing."""
        if target.exists():
            (target / MANIFEST_NAME).unlink(missing_ok=True)
            shutil.rmtree(target, ignore_errors=True)

    def delete(self, digest: str) -> None:
        """Remove a blob."""
        with self._changing(digest):
            self._clear(self.folder(digest))

    def put_aside(self, path: Path) -> Path:
        """Move something damaged out of the way, so that it does not exist any more; returns where it lies now."""
        aside = self.root / "damaged" / f"{path.name}.{uuid.uuid4().hex[:8]}"
        aside.parent.mkdir(exist_ok=True)
        os.rename(path, aside)
        sync_folder(path.parent)
        return aside

    def sweep(self) -> None:
        """Remove workspaces whose process has died."""
        for folder in (self.root / "tmp").glob("*-*"):
            try:
                with open(folder / ".lock", "rb") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            except BlockingIOError:
                continue
            except FileNotFoundError:  # its process was removing it: a workspace appears with its lock inside
                shutil.rmtree(folder, ignore_errors=True)
        for folder in (self.root / "tmp").glob("new.*"):
            try:
                if time.time() - folder.stat().st_mtime > _HALF_MADE:
                    shutil.rmtree(folder, ignore_errors=True)
            except FileNotFoundError:
                continue

    def used_bytes(self) -> int:
        """Bytes of all blobs, and of what was put aside as damaged; cheap to ask again."""
        return self._usage.total() + folder_bytes(self.root / "damaged")

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
                f"{what} need {needed:,} bytes and the store {self.root} has room for {max(room, 0):,}: free space "
                "(`eyas gc SETTINGS.yaml` says what can go), raise store.max_bytes or take fewer conversations"
            )
