"""Whatever stands in a row, it ends as a conversation or as a reject: no row stops a run."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kimi_adapters.chat import FORMATS
from kimi_adapters.chat_reasons import Rejected
from kimi_adapters.chat_rows import KEYS
from tasks import served_ids
from tasks.conversations import Choices, Reader
from tasks.json_rows import loads
from tasks.source_files import Row

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
FIELDS = {
    "a": {"type": "string", "description": "x", "enum": ["a"]},
    "b": {"type": "array", "items": {"type": "integer"}},
    "c": {"anyOf": [{"type": "string"}, {"type": "null"}]},
}
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": FIELDS, "required": ["a"]}}
TOOL = {"type": "function", "function": FUNCTION}
ROWS: list[dict[str, Any]] = [
    {
        "id": "x",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "q"}]},
            {"role": "assistant", "content": "a", "reasoning_content": "r", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "res"},
            {"role": "assistant", "content": "z"},
        ],
        "tools": [TOOL],
    },
    {"prompt": "p", "response": "r", "history": [["a", "b"]], "system": "s", "input": "i"},
    {"prompt_ids": [1, 2], "answer_ids": [3, 4], "messages": [{"role": "user", "content": "q"}]},
    {"input_ids": [1, 2], "loss_mask": [0, 1]},
    {"conversations": [{"from": "human", "value": "q"}, {"from": "function_call", "value": '{"name": "f"}'}]},
]
_TEXTS: list[Any] = ["", "x", "\ud800", "</think>x", "[]", "{}", "[1]", '{"a": 1}']
_NUMBERS: list[Any] = [None, True, -1, 5, 1.5, 10**30]
_OBJECTS: list[Any] = [
    [],
    {},
    [[]],
    [None],
    [1],
    ["x"],
    [{}],
    ["a", "b"],
    {"a": 1},
    {"type": 5},
    {"type": ["x"]},
    {"$ref": "#"},
]
VALUES = [*_TEXTS, *_NUMBERS, *_OBJECTS, {"properties": 5}, {"enum": 5}, {"name": "f"}]


class Words:
    """Stands for a tokenizer: a row is looked at here before anything of it is tokenised."""

    vocab_size = 100

    def special_ids(self) -> list[int]:
        return []

    def has_token(self, token: str) -> bool:
        return False

    def decode(self, ids: list[int], keep_special: bool = False) -> str:
        return "text"


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to every part of a JSON value, itself aside."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(value[key], (*path, key))


def changed(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The row with each part of it, and each key that a row may have, replaced by each value."""
    text = json.dumps(row)
    for path in [*places(row), *((key,) for key in (*KEYS, *served_ids.KEYS))]:
        for value in VALUES:
            copy = inner = json.loads(text)
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = value
            yield copy


@pytest.mark.parametrize("form", FORMATS)
def test_no_row_stops_the_stage(form: str) -> None:
    reader = Reader(Words(), FORMATS[form], Choices(100, 0.2))  # type: ignore[arg-type]
    rows = [row for one in ROWS for row in changed(one)]
    assert len(rows) > 3000
    for row in rows:
        reader._prepare(Row(1, row))


def test_a_torn_line_takes_no_longer_than_a_whole_one() -> None:
    text = '{"messages": "' + '{\\"a\\": [1]}, ' * 4_000
    started = time.process_time()
    for torn in (text, text + "\\"):
        with pytest.raises(ValueError, match="delimiter|string|escape"):
            loads(torn)
    with pytest.raises(Rejected):
        loads('{"a": "\\"", "b": ' + "[" * 65)
    assert loads('{"a": "' + "[" * 100 + '\\\\"}') == {"a": "[" * 100 + "\\"}
    assert time.process_time() - started < 2
