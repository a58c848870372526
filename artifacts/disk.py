"""The local disk: durable small writes, locks between processes, and one sentence when it is full."""

import errno
import fcntl
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from blake3 import blake3

from errors import UserError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_MARK, _DIGITS = b'{"check":"', 64


def is_full(error: BaseException | None) -> bool:
    """Whether an error, or one that led to it, says that a disk or a quota is full. C and Rust libraries say it in words."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _FULL or os.strerror(errno.ENOSPC) in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def takes_nothing(folder: Path) -> bool:
    """Whether the disk of ``folder`` is so full that it takes no small file: what failed there may have said anything."""
    probe = folder / f".probe.{uuid.uuid4().hex}"
    try:
        write_synced(probe, b"x" * 4096)
    except OSError as error:
        return error.errno in _FULL
    finally:
        probe.unlink(missing_ok=True)
    return False


def full_disk(where: object) -> UserError:
    """The sentence for a full disk."""
    return UserError(
        f"the disk of {where} is full: free space there, or see what `eyas gc SETTINGS.yaml` would free, then start again; "
        "what was finished is kept"
    )


@contextmanager
def telling_full(where: object) -> Iterator[None]:
    """Turn a full disk into its sentence; every other error passes."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise full_disk(where) from error
        raise


def sync_folder(path: Path) -> None:
    """Make renames and new names in ``path`` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_synced(path: Path, data: bytes) -> None:
    """Write a file and sync its bytes; its name is durable after ``sync_folder``."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_atomically(path: Path, data: bytes) -> None:
    """Write ``data`` under a temporary name beside ``path``, sync it and rename it into place. What was there stays whole."""
    with telling_full(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            write_synced(temporary, data)
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


@contextmanager
def locked(path: Path, shared: bool = False, wait: bool = True) -> Iterator[None]:
    """Hold a flock on ``path``, between threads as between processes.

    ``BlockingIOError`` where it is taken and ``wait`` is false.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(fd)


def checked(body: bytes) -> bytes:
    """A JSON object with the BLAKE3 of its own bytes as its first member, so that a flipped bit is found."""
    if not body.startswith(b"{") or body.startswith(_MARK):
        raise ValueError("only a JSON object that has no check yet can be given one")
    return _MARK + blake3(body).hexdigest().encode() + b'",' + body[1:]


def unchecked(data: bytes) -> bytes:
    """The JSON object that ``checked`` was given; ``ValueError`` when a byte differs. An object without a check passes."""
    if not data.startswith(_MARK):
        return data
    end = len(_MARK) + _DIGITS
    body = b"{" + data[end + 2 :]
    if data[end : end + 2] != b'",' or blake3(body).hexdigest().encode() != data[len(_MARK) : end]:
        raise ValueError("its bytes are not those that were written")
    return body
