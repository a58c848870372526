"""Large files that were written leave the page cache to the verifier's layers."""

import ctypes
import mmap
import os
from pathlib import Path

import pytest

from artifacts.writer import HashedFile

CHUNK = bytes(4 << 20)
LARGE = 96 << 20


def cached(path: Path) -> int:
    """Bytes of a file that the page cache has, by mincore(2)."""
    pages = -(-path.stat().st_size // mmap.PAGESIZE)
    found = (ctypes.c_ubyte * pages)()
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        failed = ctypes.CDLL(None).mincore(ctypes.byref(first), ctypes.c_size_t(len(mapped)), found)
        del first
    assert not failed
    return sum(page & 1 for page in found) * mmap.PAGESIZE


def written(path: Path, size: int) -> HashedFile:
    """A file that is still open, all of it with the system."""
    file = HashedFile(path)
    for _ in range(size // len(CHUNK)):
        file.write(CHUNK)
    file.flush()
    return file


def on_disk(path: Path) -> None:
    """Wait until the disk has what the system has."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """On a file system that can drop pages."""
    path = tmp_path / "plain"
    path.write_bytes(CHUNK)
    on_disk(path)
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if cached(path):
        pytest.skip("this file system keeps its pages, as tmpfs does")
    return tmp_path


def test_a_large_file_is_not_in_the_page_cache(folder: Path) -> None:
    written(folder / "states", LARGE).close()
    assert cached(folder / "states") == 0


def test_a_small_file_stays_for_the_next_stage(folder: Path) -> None:
    written(folder / "ids", 8 << 20).close()
    assert cached(folder / "ids") == 8 << 20


def test_what_the_disk_has_goes_while_more_is_written(folder: Path) -> None:
    file = written(folder / "states", LARGE)
    on_disk(file.path)
    for _ in range(LARGE // len(CHUNK)):
        file.write(CHUNK)
    assert cached(file.path) <= LARGE
    file.close()
