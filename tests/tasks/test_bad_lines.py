"""A file of bad lines, one of each kind known to us, each with its expected reason; and no text of theirs in what is kept."""

import json
from pathlib import Path
from typing import Any

import pytest

from kimi_adapters.chat_reasons import Reason
from kimi_adapters.tiny_checkpoint import make
from kimi_adapters.tiny_tokenizer import special_id
from tests.tasks.corpus_reading import TALK, read_file, write_rows

USER, ANSWER = {"role": "user", "content": "CANARY"}, {"role": "assistant", "content": "CANARY"}
IDS = {"prompt_token_ids": [1, 2], "token_ids": [3]}
CALL = {"function": {"name": "f", "arguments": "{}"}}


def talk(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"messages": list(messages), **more}


def says(content: Any) -> dict[str, Any]:
    return talk({"role": "user", "content": content}, ANSWER)


def nested(depth: int) -> str:
    return '{"messages": ' + "[" * depth + "]" * depth + "}"


LINES: list[tuple[Any, Reason]] = [
    (b'{"messages": [{"role": "user", "content": "CANARY \xff"}]}', Reason.NOT_UTF8),
    (b'{"messages": "\xed\xa0\x80"}', Reason.NOT_UTF8),
    ("{CANARY not json", Reason.NOT_JSON),
    ('{"messages": [{"role": "user"', Reason.NOT_JSON),
    ('{"a": 1} {"b": 2}', Reason.NOT_JSON),
    ("{'messages': []}", Reason.NOT_JSON),
    ('{"messages": [],}', Reason.NOT_JSON),
    (b"\x00\x00\x00", Reason.NOT_JSON),
    ('{"score": NaN, "messages": []}', Reason.NOT_FINITE),
    ('{"score": -Infinity}', Reason.NOT_FINITE),
    ('{"score": 1e999}', Reason.NOT_FINITE),
    ('{"messages": [], "messages": []}', Reason.DUPLICATE_KEY),
    ('{"messages": [{"role": "user", "role": "assistant", "content": "CANARY"}]}', Reason.DUPLICATE_KEY),
    (nested(65), Reason.TOO_DEEP),
    (nested(100_000), Reason.TOO_DEEP),
    ("[1, 2]", Reason.NOT_AN_OBJECT),
    ('"CANARY"', Reason.NOT_AN_OBJECT),
    ("null", Reason.NOT_AN_OBJECT),
    ({}, Reason.NO_CONVERSATION),
    ({"text": "CANARY"}, Reason.NO_CONVERSATION),
    ({"messages": 3}, Reason.NO_CONVERSATION),
    ({"messages": None}, Reason.NO_CONVERSATION),
    ({"response": "CANARY"}, Reason.NO_CONVERSATION),
    ({"messages": "CANARY"}, Reason.TEXT_NOT_JSON),
    (talk(USER, ANSWER, tools="CANARY"), Reason.TEXT_NOT_JSON),
    ({"messages": []}, Reason.NO_TURNS),
    ({"messages": "[]"}, Reason.NO_TURNS),
    ({"messages": ["CANARY"]}, Reason.NOT_A_TURN),
    ({"prompt": "CANARY", "response": "CANARY", "history": ["CANARY"]}, Reason.NOT_A_TURN),
    (talk({"content": "CANARY"}, ANSWER), Reason.NO_ROLE),
    (talk({"role": "wizard", "content": "CANARY"}, ANSWER), Reason.UNKNOWN_ROLE),
    (talk({"role": "User", "content": "CANARY"}, ANSWER), Reason.UNKNOWN_ROLE),
    (talk({"role": ["user"], "content": "CANARY"}, ANSWER), Reason.UNKNOWN_ROLE),
    ({"conversations": [{"from": "bard", "value": "CANARY"}]}, Reason.UNKNOWN_ROLE),
    (talk({"role": "user"}, ANSWER), Reason.NO_CONTENT),
    (talk(USER, {"role": "assistant", "content": None}), Reason.NO_CONTENT),
    (says(3), Reason.NOT_TEXT),
    (says(["CANARY"]), Reason.NOT_TEXT),
    (says([{"type": "file", "file": {"file_id": "CANARY"}}]), Reason.NOT_TEXT),
    ({"prompt": {"CANARY": 1}, "response": "CANARY"}, Reason.NOT_TEXT),
    (says([{"type": "text", "text": "CANARY"}, {"type": "image_url", "image_url": {"url": "CANARY"}}]), Reason.IMAGE),
    (talk(USER, ANSWER, images=["CANARY.png"]), Reason.IMAGE),
    ({**says([{"type": "image_url", "image_url": {"url": "CANARY"}}]), **IDS}, Reason.IMAGE),
    ({"videos": ["CANARY.mp4"], "prompt_ids": [1, 2], "answer_ids": [3]}, Reason.IMAGE),
    (says([{"type": "input_audio", "input_audio": {}}]), Reason.AUDIO),
    ({**says([{"type": "input_audio", "input_audio": {}}]), **IDS}, Reason.AUDIO),
    (talk(USER, {**ANSWER, "audio": {"id": "CANARY"}}), Reason.AUDIO),
    (talk(USER, {**ANSWER, "reasoning_content": ["CANARY"]}), Reason.BAD_REASONING),
    (talk({**USER, "reasoning": "CANARY"}, ANSWER), Reason.BAD_REASONING),
    (talk(USER, ANSWER, tools={"name": "f"}), Reason.BAD_TOOLS),
    (talk(USER, ANSWER, tools=[{"type": "function", "function": {}}]), Reason.BAD_TOOLS),
    (talk(USER, ANSWER, tools=[{"type": "retrieval", "function": {"name": "f"}}]), Reason.BAD_TOOLS),
    (talk(USER, {**ANSWER, "tool_calls": {"name": "f"}}), Reason.BAD_TOOL_CALL),
    (talk(USER, {**ANSWER, "tool_calls": [{"function": {"arguments": "{}"}}]}), Reason.BAD_TOOL_CALL),
    (talk(USER, {**ANSWER, "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}), Reason.BAD_TOOL_CALL),
    (talk({**USER, "tool_calls": [CALL]}, ANSWER), Reason.BAD_TOOL_CALL),
    ({"conversations": [{"from": "function_call", "value": "CANARY"}]}, Reason.BAD_TOOL_CALL),
    (talk(USER, ANSWER, id=["CANARY"]), Reason.BAD_ID),
    (talk(USER, ANSWER, id=True), Reason.BAD_ID),
    (r'{"messages": [{"role": "user", "content": "CANARY \ud83d"}, {"role": "assistant", "content": "x"}]}', Reason.SURROGATE),
    (
        r'{"id": "\udc00", "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}',
        Reason.SURROGATE,
    ),
    (talk(USER), Reason.NO_ASSISTANT),
    ({"prompt": "CANARY"}, Reason.NO_ASSISTANT),
    ({"prompt_ids": [1, 2], "answer_ids": []}, Reason.NOTHING_SUPERVISED),
    ({"prompt_ids": [], "answer_ids": [1]}, Reason.NOTHING_SUPERVISED),
    ({"input_ids": [1, 2], "loss_mask": [1, 0]}, Reason.NOTHING_SUPERVISED),
    (talk({"role": "user", "content": "CANARY " * 300}, ANSWER), Reason.TOO_LONG),
    ({"prompt_ids": [1] * 200, "answer_ids": [1, 2]}, Reason.TOO_LONG),
    ({"prompt_ids": [1, 2]}, Reason.IDS_INCOMPLETE),
    ({"token_ids": [1, 2], "messages": [USER, ANSWER]}, Reason.IDS_INCOMPLETE),
    ({"prompt_ids": "1 2", "answer_ids": [3]}, Reason.IDS_NOT_NUMBERS),
    ({"prompt_ids": [1.5], "answer_ids": [3]}, Reason.IDS_NOT_NUMBERS),
    ({"prompt_ids": [1], "answer_ids": [True]}, Reason.IDS_NOT_NUMBERS),
    ({"prompt_ids": [1], "answer_ids": [49152]}, Reason.IDS_NOT_IN_VOCABULARY),
    ({"prompt_token_ids": [-1], "token_ids": [5]}, Reason.IDS_NOT_IN_VOCABULARY),
    ({"input_ids": [1, 2], "loss_mask": [1]}, Reason.IDS_BAD_MASK),
    ({"input_ids": [1, 2], "loss_mask": [0, -100]}, Reason.IDS_BAD_MASK),
    (talk(USER, ANSWER, tools=[{"name": "f"}]), Reason.FORMAT_TOOLS),
    (talk(USER, {**ANSWER, "tool_calls": [CALL]}), Reason.FORMAT_TOOL_CALLS),
    (talk(USER, {"role": "tool", "content": "CANARY"}, ANSWER), Reason.FORMAT_TOOL_RESULTS),
    (talk(USER, {**ANSWER, "reasoning_content": "CANARY"}), Reason.FORMAT_THINKING),
]
# What a reader of this format cannot meet is shown by the tests of long lines and of Kimi's format.
ELSEWHERE = {Reason.LINE_TOO_LONG, Reason.ORPHAN_RESULT, Reason.FORMAT_SCHEMA}


def test_every_bad_line_has_its_reason(cut_verifier: Path, tmp_path: Path) -> None:
    rows: list[Any] = []
    for line, _ in LINES:
        rows += [line, {**TALK, "id": str(len(rows)), "messages": [{"role": "user", "content": f"{len(rows)}"}, ANSWER]}]
    found = read_file(write_rows(tmp_path / "bad.jsonl", rows), cut_verifier)
    expected = [(2 * number + 1, reason.value) for number, (_, reason) in enumerate(LINES)]
    assert found.rejects == expected
    assert len(LINES) >= 40 and {reason for _, reason in LINES} == set(Reason) - ELSEWHERE
    assert found.counts.rows == 2 * len(LINES) and found.counts.conversations == len(LINES)
    assert "CANARY" not in json.dumps([found.rejects, found.counts.facts(), [sample.line for sample in found.samples]])


def test_served_ids_that_stand_for_an_image_are_one(tmp_path: Path) -> None:
    """Whatever the messages show: a placeholder's own embedding is not what the verifier saw."""
    kimi = make(tmp_path / "kimi")
    begin, pad, end = map(special_id, ("<|media_begin|>", "<|media_pad|>", "<|media_end|>"))
    rows = [
        {**talk(USER, ANSWER), **IDS},
        {**talk(USER, ANSWER), "prompt_token_ids": [begin, pad, pad, end, 5], "token_ids": [3]},
        {"prompt_ids": [pad, 5], "answer_ids": [3]},
        {"input_ids": [5, pad, 3], "loss_mask": [0, 0, 1]},
    ]
    found = read_file(write_rows(tmp_path / "rows.jsonl", rows), kimi, "kimi_k2")
    assert found.rejects == [(number, Reason.IMAGE.value) for number in (2, 3, 4)] and len(found.samples) == 1


@pytest.mark.parametrize(("line", "reason"), LINES[:16:3])
def test_a_bad_line_at_the_end_without_a_line_break(cut_verifier: Path, tmp_path: Path, line: Any, reason: Reason) -> None:
    path = write_rows(tmp_path / "bad.jsonl", [TALK, line])
    path.write_bytes(path.read_bytes()[:-1])
    found = read_file(path, cut_verifier)
    assert found.rejects == [(2, reason.value)] and len(found.samples) == 1
