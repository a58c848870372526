"""Files as people have them: compressed, tabular, with marks and odd line ends, damaged, and folders of them."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from blake3 import blake3
from pyarrow import parquet

from errors import UserError
from kimi_adapters.chat_reasons import Reason
from tasks.corpus_files import sources
from tasks.settings import DataSettings, Settings
from tasks.source_files import MAX_LINE, Row, rows
from tests.tasks.corpus_reading import TALK, read_file, write_rows

COLUMNS = ("id", "messages", "tools")
OTHER: dict[str, Any] = {"id": "y", "messages": [{"role": "user", "content": "Ho"}, {"role": "assistant", "content": "Oh é."}]}


class Memo:
    """Digests files as the flow's memo does."""

    def digest(self, path: Path) -> str:
        return blake3(path.read_bytes()).hexdigest()


def listed(*paths: Path) -> list[Any]:
    return sources(Settings(data=DataSettings(conversations=[str(path) for path in paths])), Memo())


def all_rows(path: Path, limit: int | None = None) -> list[Row]:
    return list(rows(path, blake3(path.read_bytes()).hexdigest(), COLUMNS, limit, lambda done: None))


def test_every_kind_gives_the_same_rows(tmp_path: Path) -> None:
    plain = write_rows(tmp_path / "a.jsonl", [TALK, OTHER])
    text = plain.read_bytes()
    codec = pyarrow.Codec("zstd")
    kinds = {
        "gzip": gzip.compress(text),
        "gzip in two members": gzip.compress(text[:40]) + gzip.compress(text[40:]),
        "zstd": codec.compress(text, asbytes=True),
        "a mark of byte order": b"\xef\xbb\xbf" + text,
        "CRLF": text.replace(b"\n", b"\r\n"),
        "no last line break": text[:-1],
    }
    expected = [(1, TALK), (2, OTHER)]
    assert [(row.number, row.values) for row in all_rows(plain)] == expected
    for name, data in kinds.items():
        path = tmp_path / "b"
        path.write_bytes(data)
        assert [(row.number, row.values) for row in all_rows(path)] == expected, name
        assert [row.number for row in all_rows(path, limit=1)] == [1]
        with pytest.raises(UserError, match="changed while the run was going on"):
            list(rows(path, "00", COLUMNS, None, lambda done: None))


def test_parquet_as_structs_and_as_text(tmp_path: Path) -> None:
    calls = {"id": "c", "messages": [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}]}
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([{**TALK, "score": 1.0}, OTHER, calls]), path, row_group_size=2)
    found = all_rows(path)
    assert [row.values for row in found[:2]] == [TALK, OTHER] and [row.number for row in found] == [1, 2, 3]
    assert found[2].values["messages"] == [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]
    texts = [{"id": "x", "messages": json.dumps(TALK["messages"])}, {"id": "y", "messages": json.dumps(OTHER["messages"])}]
    parquet.write_table(pyarrow.Table.from_pylist(texts), path)
    assert [row.values for row in all_rows(path, limit=1)] == texts[:1]
    parquet.write_table(pyarrow.table({"other": [1, 2]}), path)
    assert [row.values for row in all_rows(path)] == [{}, {}]
    broken = pyarrow.array([b"ok", b"\xff"]).cast(pyarrow.string(), safe=False)
    parquet.write_table(pyarrow.table({"messages": broken}), path)
    assert [row.reason for row in all_rows(path)] == [None, Reason.NOT_UTF8]


def test_four_spellings_and_every_kind_of_file_give_the_same_tokens(cut_verifier: Path, tmp_path: Path) -> None:
    messages = TALK["messages"]
    spellings = [
        TALK,
        {"id": "x", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello there."}]},
        {"id": "x", "prompt": "Hi", "response": "Hello there."},
        {"id": "x", "instruction": "Hi", "input": "", "output": "Hello there."},
        {"id": "x", "prompt": messages[:1], "completion": messages[1:]},
        {"id": "x", "messages": json.dumps(messages), "conversations": None},
        {"id": "x", "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}, messages[1]]},
    ]
    expected = read_file(write_rows(tmp_path / "a", [TALK]), cut_verifier).samples[0]
    for spelled in spellings:
        (sample,) = read_file(write_rows(tmp_path / "a", [spelled]), cut_verifier).samples
        assert sample.ids.tolist() == expected.ids.tolist() and sample.mask.tolist() == expected.mask.tolist()
        assert sample.line == expected.line
    found = read_file(write_rows(tmp_path / "a", spellings), cut_verifier)
    assert len(found.samples) == 1 and found.counts.duplicates == len(spellings) - 1


def test_a_line_over_the_limit_is_a_reject_and_the_next_one_is_read(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    with open(path, "wb") as file:
        file.write(b'{"messages": "' + b"x" * (MAX_LINE + 5_000_000) + b'"}\n')
        file.write(json.dumps(TALK).encode())
    first, second = all_rows(path)
    assert (first.number, first.reason, first.values) == (1, Reason.LINE_TOO_LONG, None)
    assert (second.number, second.values) == (2, TALK)


def test_damage_is_told_in_one_sentence_that_names_the_file(tmp_path: Path) -> None:
    text = write_rows(tmp_path / "a.jsonl", [{**TALK, "id": str(number)} for number in range(500)]).read_bytes()
    packed, path = bytearray(gzip.compress(text)), tmp_path / "b"
    path.write_bytes(packed[:-9])
    with pytest.raises(UserError, match=f"{path} is damaged .*: write it again"):
        all_rows(path)
    packed[len(packed) // 2] ^= 1
    path.write_bytes(packed)
    with pytest.raises(UserError, match="is damaged"):
        all_rows(path)
    table = tmp_path / "t.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([TALK] * 100), table)
    data = table.read_bytes()
    table.write_bytes(data[:-200])
    with pytest.raises(UserError, match="Parquet file that was cut"):
        listed(table)
    with pytest.raises(UserError, match="no whole Parquet file"):
        all_rows(table)


def test_packed_files_can_be_read_by_a_child_that_opens_nothing_else(tmp_path: Path) -> None:
    text = write_rows(tmp_path / "a.jsonl", [TALK, OTHER]).read_bytes()
    (tmp_path / "a.gz").write_bytes(gzip.compress(text))
    (tmp_path / "a.zst").write_bytes(pyarrow.Codec("zstd").compress(text, asbytes=True))
    parquet.write_table(pyarrow.Table.from_pylist([TALK, OTHER]), tmp_path / "a.parquet")
    root = Path(__file__).parents[2]
    program = (
        "from pathlib import Path; from running.guard import only_declared; from tasks.source_files import rows\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "files = [folder / name for name in ('a.gz', 'a.zst', 'a.parquet')]\n"
        "only_declared(files, [folder])\n"
        "for file in files:\n"
        "    assert len(list(rows(file, None, ('id', 'messages'), None, print))) == 2\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-P", "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_names_that_promise_another_kind(tmp_path: Path) -> None:
    for name, kind in (("a.jsonl.gz", "gzip"), ("a.jsonl.zst", "zstd"), ("a.parquet", "parquet")):
        path = write_rows(tmp_path / name, [TALK])
        with pytest.raises(UserError, match=f"{path} is no {kind} file"):
            listed(path)


def test_a_folder_gives_each_known_file_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "deep").mkdir(parents=True)
    (folder / ".cache").mkdir()
    for name in ("b.jsonl", "a.ndjson", "deep/c.jsonl", ".cache/d.jsonl", ".e.jsonl", "README.md"):
        write_rows(folder / name, [TALK])
    (folder / "c.jsonl.gz").write_bytes(gzip.compress(b"{}\n"))
    assert [source.name for source in listed(folder)] == ["a", "b", "c", "deep/c"]
    one = write_rows(tmp_path / "x.data", [TALK])
    assert [source.name for source in listed(one, folder)][:2] == ["x", "a"]
    with pytest.raises(UserError, match="named twice"):
        listed(folder, folder / "b.jsonl")
    (folder / "deep" / "empty.jsonl").touch()
    with pytest.raises(UserError, match="empty.jsonl is empty"):
        listed(folder)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(UserError, match="has no file of a known kind"):
        listed(tmp_path / "nothing")
