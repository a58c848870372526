"""What is remembered of a file is its digest still, after any bit of the memory has turned or the file was replaced."""

import os
import shutil
from pathlib import Path

from artifacts.manifest import digest_file
from running.identity import FileMemo


def test_a_damaged_memory_is_no_memory(tmp_path: Path) -> None:
    file = tmp_path / "corpus.jsonl"
    file.write_text("{}")
    os.utime(file, (1, 1))
    memo, digest = FileMemo(tmp_path), digest_file(file)
    assert memo.digest(file) == digest
    (remembered,) = (tmp_path / "remembered").iterdir()
    data = remembered.read_bytes()
    for position in range(0, len(data), 5):
        for change in (data[:position], data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]):
            remembered.write_bytes(change)
            assert memo.digest(file) == digest, f"byte {position}"


def test_a_file_that_was_replaced_under_its_own_time_is_read_again(tmp_path: Path) -> None:
    file, newer = tmp_path / "corpus.jsonl", tmp_path / "newer.jsonl"
    for path, text in ((file, "{}"), (newer, "[]")):
        path.write_text(text)
        os.utime(path, (1, 1))
    memo = FileMemo(tmp_path)
    assert memo.digest(file) == digest_file(file)
    before = file.stat()
    shutil.copy2(newer, file)  # as `cp -p` does: the same inode, size and time of change
    after = file.stat()
    assert (before.st_ino, before.st_size, before.st_mtime_ns) == (after.st_ino, after.st_size, after.st_mtime_ns)
    assert memo.digest(file) == digest_file(file) == digest_file(newer)


def test_what_is_remembered_is_not_computed_again(tmp_path: Path) -> None:
    file = tmp_path / "corpus.jsonl"
    file.write_text("{}")
    os.utime(file, (1, 1))
    memo = FileMemo(tmp_path)
    assert memo.recall("size", [file], lambda told: {"size": 2}) == {"size": 2}
    assert memo.recall("size", [file], lambda told: 1 / 0) == {"size": 2}
