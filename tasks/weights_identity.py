"""What a checkpoint's text tensors are, by role: from their bytes, or for a download of the hub from the hub's digests.

Two ways, and which one is taken depends on the directory alone:

1. Each role's tensors, sorted by name, with names, dtypes, shapes and bytes, go through BLAKE3. Neither other tensors nor the
   files that they lie in count. Pieces are read ahead by several threads while the hashing goes on.
2. Where ``.cache/huggingface/download`` says of EVERY file of weights what the hub holds (``hf download --local-dir`` leaves a
   ``.metadata`` file each: commit, etag, time), a role is its tensors' names and the SHA-256 of the files that they lie in:
   the etag of an LFS file. Nothing is read then. Trusted is that the hub's client wrote what it verified, and that nobody has
   touched the file since: neither contents nor inode changed (mtime, ctime) after the time in its metadata, the header promises
   the bytes that the file has, and the index's ``total_size``, where it names one, is what the headers add up to. A file of
   which any of this does not hold (a copy has a new ctime) is read, and its SHA-256 taken: the identity stays the same.

So a README or a file with none but other tensors changes nothing in either; a tensor's change changes the roles of its file in
the second. Weights copied WITHOUT ``.cache`` have another identity than the download: no stale state, but an extraction anew.
"""

import hashlib
import json
import re
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from blake3 import blake3

from artifacts.manifest import canonical_json, digest_bytes
from kimi_adapters.tensor_file import TensorFile
from kimi_adapters.weights import INDEX, text_entries, weight_files

HUB = Path(".cache") / "huggingface" / "download"
READERS = 8
_PIECE = 16 << 20
_AHEAD = 2 * READERS  # pieces that are read or wait: 256 MB
_SHA256 = re.compile(r"[0-9a-f]{64}")

Told = Callable[[int], None]
Entries = list[tuple[str, str, TensorFile, str]]


def role_digests(directory: Path, told: Told) -> dict[str, str]:
    """A digest for each role that has tensors. ``told`` hears of bytes that were read. ``UserError``: broken files."""
    entries = text_entries(directory)
    files = weight_files(directory)
    metadata = {path: _metadata(directory, path) for path in files}
    if all(found is not None for found in metadata.values()):
        return _by_files(directory, entries, metadata, told)
    return _by_bytes(entries, told)


def _by_bytes(entries: Entries, told: Told) -> dict[str, str]:
    hashers: dict[str, Any] = {}
    for role, head, content in _read_ahead(entries):
        hasher = hashers.setdefault(role, blake3(max_threads=blake3.AUTO))
        if head:
            hasher.update(head)
        hasher.update(content)
        told(len(content))
    return {role: hasher.hexdigest() for role, hasher in hashers.items()}


def _read_ahead(entries: Entries) -> Iterator[tuple[str, bytes, memoryview]]:
    """(role, what goes before it, a piece of bytes), in order; a piece's memory is used again after the next was asked for."""
    free: list[memoryview] = []
    waiting: deque[tuple[str, bytes, memoryview, int, Future[None]]] = deque()
    with ThreadPoolExecutor(READERS) as pool:
        for role, head, file, stored, start, size in _pieces(entries):
            buffer = free.pop() if free else memoryview(bytearray(_PIECE))
            waiting.append((role, head, buffer, size, pool.submit(file.read_part, stored, buffer[:size], start)))
            if len(waiting) > _AHEAD:
                yield from _arrived(waiting.popleft(), free)
        while waiting:
            yield from _arrived(waiting.popleft(), free)


def _arrived(
    one: tuple[str, bytes, memoryview, int, "Future[None]"], free: list[memoryview]
) -> Iterator[tuple[str, bytes, memoryview]]:
    role, head, buffer, size, read = one
    read.result()
    yield role, head, buffer[:size]
    free.append(buffer)


def _pieces(entries: Entries) -> Iterator[tuple[str, bytes, TensorFile, str, int, int]]:
    """Each tensor's role, what goes before its first piece, and where its pieces lie; an empty tensor is one of none."""
    for role, name, file, stored in entries:
        entry = file.entry(stored)
        head, size = canonical_json([name, entry.dtype, list(entry.shape)]), entry.end - entry.start
        for start in range(0, max(1, size), _PIECE):
            yield role, head if start == 0 else b"", file, stored, start, min(_PIECE, size - start)


def _by_files(directory: Path, entries: Entries, metadata: dict[Path, Any], told: Told) -> dict[str, str]:
    """``entries`` come from opened files, whose headers promise the bytes that they have."""
    whole = _total_is_right(directory, {file.path: file for _, _, file, _ in entries})
    used = sorted({file.path for _, _, file, _ in entries})
    with ThreadPoolExecutor(READERS) as pool:
        found = pool.map(lambda path: (whole and _still(path, metadata[path])) or _sha256(path, told), used)
        digests = dict(zip(used, found, strict=True))
    roles: dict[str, list[list[str]]] = {}
    for role, name, file, stored in entries:
        roles.setdefault(role, []).append([name, stored, digests[file.path]])
    return {role: digest_bytes(canonical_json(["sha256 of files", tensors])) for role, tensors in roles.items()}


def _metadata(directory: Path, path: Path) -> tuple[str, float] | None:
    """(etag, time) that the hub's client noted of a file; None where it noted nothing that can be read."""
    try:
        with open(directory / HUB / f"{path.relative_to(directory).as_posix()}.metadata", encoding="utf-8") as file:
            _, etag, time = file.read().split()
        return etag, float(time)
    except (OSError, ValueError):
        return None


def _still(path: Path, metadata: tuple[str, float]) -> str | None:
    """The SHA-256 that the hub has of a file that nobody has touched since; None where that is not sure."""
    etag, noted = metadata
    stat = path.stat()
    return etag if _SHA256.fullmatch(etag) and max(stat.st_mtime, stat.st_ctime) <= noted else None


def _total_is_right(directory: Path, files: dict[Path, TensorFile]) -> bool:
    """Whether the index names no size of all tensors, or the right one."""
    try:
        with open(directory / INDEX, encoding="utf-8") as file:
            said = json.load(file).get("metadata", {}).get("total_size")
    except FileNotFoundError:
        return True
    files |= {path: TensorFile(path) for path in weight_files(directory) if path not in files}
    there = sum(entry.end - entry.start for file in files.values() for entry in file.entries.values())
    return said is None or said == there


def _sha256(path: Path, told: Told) -> str:
    hasher, buffer = hashlib.sha256(), memoryview(bytearray(_PIECE))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            hasher.update(buffer[:count])
            told(count)
    return hasher.hexdigest()
