"""Prompts files: every line a prompt, or the first that is none is named."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from errors import UserError
from tasks.prompts import read_prompts


def row(content: str) -> str:
    return json.dumps({"id": "a", "messages": [{"role": "user", "content": content}]}, ensure_ascii=False)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back(tmp_path_factory: pytest.TempPathFactory, content: str) -> None:
    """What divides lines elsewhere (U+2028, U+0085, a form feed) stands inside JSON strings here."""
    path = tmp_path_factory.mktemp("prompts") / "p.jsonl"
    path.write_bytes(f"{row(content)}\r\n\n{row('next')}".encode())
    assert [one["messages"][0]["content"] for one in read_prompts(str(path))] == [content, "next"]


def test_line_separators_and_a_byte_order_mark_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + row("one\u2028two\x85three").encode())
    (found,) = read_prompts(str(path))
    assert found["messages"] == [{"role": "user", "content": "one\u2028two\x85three"}]


@pytest.mark.parametrize(
    "line",
    [
        b"\xff",
        b"[]",
        b'"text"',
        b'{"messages": []}',
        b'{"messages": [{"role": "user"}]}',
        b'{"messages": [{"role": "user", "content": null}]}',
        b'{"messages": "text"}',
        b"{",
    ],
)
def test_a_line_that_is_no_prompt_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(row("x").encode() + b"\n" + line + b"\n")
    with pytest.raises(UserError, match="line 2, is no prompt"):
        read_prompts(str(path))


def test_an_empty_file_and_a_folder_are_told(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(UserError, match="is empty"):
        read_prompts(str(tmp_path / "empty.jsonl"))
    with pytest.raises(UserError, match="cannot be read"):
        read_prompts(str(tmp_path))
