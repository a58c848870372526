"""What is remembered of a file is its digest still after any bit of the memory has turned."""

import os
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


def test_what_is_remembered_is_not_computed_again(tmp_path: Path) -> None:
    file = tmp_path / "corpus.jsonl"
    file.write_text("{}")
    os.utime(file, (1, 1))
    memo = FileMemo(tmp_path)
    assert memo.recall("size", [file], lambda told: {"size": 2}) == {"size": 2}
    assert memo.recall("size", [file], lambda told: 1 / 0) == {"size": 2}
