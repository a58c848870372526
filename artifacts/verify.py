"""Checking a store: sizes against manifests, digests against bytes, manifests and records against their own names."""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from artifacts.aliases import Aliases, read_alias
from artifacts.forgotten import FORGOTTEN, read_forgotten
from artifacts.key import key_of
from artifacts.manifest import MANIFEST_NAME, FileEntry, Manifest
from artifacts.records import Records, read_record
from artifacts.runs import Runs, read_run
from artifacts.store import Store

_PRECIOUS = ("alias", "list of forgotten conversations")
_CHUNK = 4 << 20
FILES_AT_ONCE = max(2, (os.cpu_count() or 1) // 2)  # read at once, each with a thread that hashes beside it
_BUFFERS = 3

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Finding:
    """Something that is not as it was written, or (``damaged`` false) something left over that counts for nothing."""

    what: str
    path: Path
    why: str
    damaged: bool = True
    digest: str | None = None


def verify(store: Store, state: Path, deep: bool, progress: Progress) -> Iterator[Finding]:
    """Everything that is wrong with a store and its aliases, one finding a thing.

    Sizes of all files; with ``deep`` their BLAKE3, too, read by several threads. ``progress`` is told bytes done and to do.
    """
    sound: list[tuple[Path, Manifest]] = []
    for folder in store.folders():
        finding, manifest = check_blob(folder)
        if finding is not None:
            yield finding
        elif manifest is not None:
            sound.append((folder, manifest))
    if deep:
        yield from _deep(sound, progress)
    yield from _files("record", Records(store.root).paths(), _check_record)
    yield from _files("run manifest", Runs(store.root).paths(), read_run)
    yield from _files(_PRECIOUS[0], Aliases(state).paths(), read_alias)
    forgotten = store.root / FORGOTTEN
    yield from _files(_PRECIOUS[1], [forgotten] if forgotten.exists() else [], read_forgotten)


def check_blob(folder: Path) -> tuple[Finding | None, Manifest | None]:
    """The first thing that is wrong with a blob without reading its files, else its manifest."""
    digest = folder.name
    try:
        manifest = Manifest.model_validate_json((folder / MANIFEST_NAME).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return Finding("folder", folder, "has no manifest, so it is no blob: left by a process that was killed", False), None
    except ValueError:
        return Finding("blob", folder, "its manifest cannot be read", digest=digest), None
    if manifest.digest() != digest or folder.parent.name != digest[:2]:
        return Finding(manifest.kind, folder, "its manifest is not the one that gave it its name", digest=digest), None
    for entry in manifest.files:
        try:
            size = (folder / entry.path).stat().st_size
        except FileNotFoundError:
            return Finding(manifest.kind, folder, f"{entry.path} is gone", digest=digest), None
        if size != entry.size:
            why = f"{entry.path} has {size:,} bytes instead of {entry.size:,}"
            return Finding(manifest.kind, folder, why, digest=digest), None
    return None, manifest


def _deep(blobs: list[tuple[Path, Manifest]], progress: Progress) -> Iterator[Finding]:
    total, done, lock = sum(manifest.size for _, manifest in blobs), 0, threading.Lock()

    def told(count: int) -> None:
        nonlocal done
        with lock:
            done += count
            progress(done, total)

    def check(item: tuple[Path, Manifest, FileEntry]) -> Finding | None:
        folder, manifest, entry = item
        try:
            same = digest_of_file(folder / entry.path, told) == entry.blake3
        except OSError as error:
            return Finding(manifest.kind, folder, f"{entry.path} cannot be read: {error.strerror}", digest=folder.name)
        return None if same else Finding(manifest.kind, folder, f"{entry.path} has other bytes", digest=folder.name)

    files = [(folder, manifest, entry) for folder, manifest in blobs for entry in manifest.files]
    named: set[str | None] = set()
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        for finding in pool.map(check, files):
            if finding and finding.digest not in named:
                named.add(finding.digest)
                yield finding


def digest_of_file(path: Path, told: Callable[[int], None]) -> str:
    """BLAKE3 of a file; ``told`` hears of each piece's bytes. A thread hashes a piece while this one reads the next."""
    hasher, buffers = blake3(), deque(memoryview(bytearray(_CHUNK)) for _ in range(_BUFFERS))
    waiting: deque[Future[int]] = deque()

    def hashed(piece: memoryview) -> int:
        hasher.update(piece)
        return len(piece)

    with open(path, "rb", buffering=0) as file, ThreadPoolExecutor(1) as thread:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while count := file.readinto(buffers[0]):
            waiting.append(thread.submit(hashed, buffers[0][:count]))
            buffers.rotate()
            if len(waiting) == _BUFFERS:
                told(waiting.popleft().result())
        for piece in waiting:
            told(piece.result())
    return hasher.hexdigest()


def _check_record(path: Path) -> object:
    record = read_record(path)
    if key_of(record.parts) != record.key:
        raise ValueError("its parts do not give its key")
    return record


def _files(what: str, paths: list[Path], read: Callable[[Path], object]) -> Iterator[Finding]:
    for path in paths:
        try:
            read(path)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            yield Finding(what, path, f"cannot be trusted: {str(error).splitlines()[0]}")


def repair(store: Store, finding: Finding) -> Path | None:
    """Put what is damaged aside; returns where it lies now. A blob's producer makes it again when it is read next.

    None for an alias and for the list of forgotten conversations: nothing can make them again. The caller holds
    ``Store.alone``.
    """
    return None if finding.what in _PRECIOUS else store.put_aside(finding.path)
