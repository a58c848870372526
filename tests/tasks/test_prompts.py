"""A prompts file is read as it stands, or refused with the line and the reason, before anything runs."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from errors import UserError
from kimi_adapters.chat_reasons import Reason
from tasks.prompts import read_prompts

ASK = {"id": "p", "messages": [{"role": "user", "content": "Tell me."}]}


def said(content: Any, role: str = "user", **more: Any) -> dict[str, Any]:
    return {"id": "p", "messages": [{"role": role, "content": content, **more}]}


def written(folder: Path, *lines: Any) -> str:
    path = folder / "prompts.jsonl"
    path.write_bytes(b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines))
    return str(path)


def test_texts_stay_as_they_are(tmp_path: Path) -> None:
    """A line separator inside a text ends no line; a mark of byte order and CRLF are no part of a row."""
    odd = said("one\u2028two\u0085three\x0bfour")
    lines = [b"\xef\xbb\xbf" + json.dumps(ASK).encode() + b"\r", b"", json.dumps(odd, ensure_ascii=False).encode()]
    parts = said([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "human")
    rows = read_prompts(written(tmp_path, *lines, parts, {"messages": ASK["messages"]}))
    assert rows[:2] == [ASK, odd]
    assert rows[2]["messages"] == [{"role": "user", "content": "ab"}] and rows[3]["id"] == "prompts-5"
    assert read_prompts(written(tmp_path, ASK, odd), 1) == [ASK]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", Reason.NOT_JSON),
        (b'{"messages": "\xff"}', Reason.NOT_JSON),
        (b"[" * 100_000, Reason.TOO_DEEP),
        ([1], Reason.NOT_AN_OBJECT),
        ({"prompt": "x"}, Reason.NO_CONVERSATION),
        ({"messages": []}, Reason.NO_TURNS),
        (said("x", "wizard"), Reason.UNKNOWN_ROLE),
        (said(None), Reason.NO_CONTENT),
        (said({"a": 1}), Reason.NOT_TEXT),
        (said([{"type": "image_url"}]), Reason.IMAGE),
        (said("x", "tool"), Reason.FORMAT_TOOL_CALLS),
        (said("x", "assistant", reasoning_content="y"), Reason.FORMAT_THINKING),
        (said("\ud83d"), Reason.SURROGATE),
    ],
)
def test_what_is_no_prompt_is_told_with_its_line_and_reason(tmp_path: Path, line: Any, reason: Reason) -> None:
    path = written(tmp_path, ASK, line)
    with pytest.raises(UserError, match=rf"prompts\.jsonl, line 2, is no prompt \({reason.value}\)"):
        read_prompts(path)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_text_comes_back(tmp_path_factory: pytest.TempPathFactory, content: str) -> None:
    path = tmp_path_factory.mktemp("prompts") / "p.jsonl"
    path.write_bytes(b"\r\n\n".join(json.dumps(said(text), ensure_ascii=False).encode() for text in (content, "next")))
    assert [row["messages"][0]["content"] for row in read_prompts(str(path))] == [content, "next"]


def test_an_empty_file_and_a_folder_are_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is empty"):
        read_prompts(written(tmp_path))
    with pytest.raises(UserError, match="cannot be read"):
        read_prompts(str(tmp_path))
