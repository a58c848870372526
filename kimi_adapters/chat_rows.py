"""Rows of data sets and logs, in the spellings people have, as conversations. ``Rejected`` with the reason otherwise."""

import json
from collections.abc import Callable
from typing import Any

from kimi_adapters.chat_messages import Conversation, Message, ToolCall
from kimi_adapters.chat_reasons import Reason, Rejected

ROLE_OF = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}
_CALL_ROLES = ("function_call", "tool_call")
_PARTS = {
    "image": Reason.IMAGE,
    "image_url": Reason.IMAGE,
    "input_image": Reason.IMAGE,
    "video": Reason.IMAGE,
    "video_url": Reason.IMAGE,
    "audio": Reason.AUDIO,
    "audio_url": Reason.AUDIO,
    "input_audio": Reason.AUDIO,
}
_PROMPTS, _ANSWERS = ("prompt", "instruction"), ("response", "completion", "output")
KEYS = (
    "id",
    "messages",
    "conversations",
    "tools",
    "functions",
    "system",
    "input",
    "history",
    "images",
    "audios",
    "videos",
    *_PROMPTS,
    *_ANSWERS,
)

Loads = Callable[[str], Any]


def conversation_of(row: dict[str, Any], loads: Loads = json.loads) -> Conversation:
    """The conversation of a row.

    Spellings: ``messages`` or ``conversations``, lists of role/content or from/value turns or such a list as JSON text;
    ``prompt`` or ``instruction`` (with ``input``, ``system``, ``history``) and ``response``, ``completion`` or ``output``,
    each a text or a list of turns. ``tools`` or ``functions``: a list, or JSON text. ``loads`` parses text and may raise
    ``Rejected`` itself. A key whose value is null counts as absent: tables have every column in every row.
    """
    for name, reason in (("images", Reason.IMAGE), ("videos", Reason.IMAGE), ("audios", Reason.AUDIO)):
        if row.get(name):
            raise Rejected(reason)
    turns = _first(row, ("messages", "conversations"))
    messages = _messages(turns, loads) if turns is not None else _prompt_and_answer(row, loads)
    return Conversation(messages, _tools(_first(row, ("tools", "functions")), loads))


def message_of(turn: Any, loads: Loads = json.loads) -> Message:
    """One turn, spelled role/content or from/value."""
    if not isinstance(turn, dict):
        raise Rejected(Reason.NOT_A_TURN)
    spelled = _first(turn, ("role", "from"))
    if spelled is None:
        raise Rejected(Reason.NO_ROLE)
    content = _first(turn, ("content", "value"))
    if spelled in _CALL_ROLES:
        return Message("assistant", tool_calls=_spoken_calls(content, loads))
    role = ROLE_OF.get(spelled) if isinstance(spelled, str) else None
    if role is None:
        raise Rejected(Reason.UNKNOWN_ROLE)
    reasoning = _reasoning(turn)
    calls = _tool_calls(turn, loads)
    if role != "assistant" and (calls or reasoning):
        raise Rejected(Reason.BAD_TOOL_CALL if calls else Reason.BAD_REASONING)
    if turn.get("audio"):
        raise Rejected(Reason.AUDIO)
    if content is None and not calls and not reasoning:
        raise Rejected(Reason.NO_CONTENT)
    answered, name = turn.get("tool_call_id"), turn.get("name")
    if not all(value is None or isinstance(value, str) for value in (answered, name)):
        raise Rejected(Reason.BAD_TOOL_CALL)
    return Message(role, _text("" if content is None else content), reasoning, calls, answered, name)


def _first(row: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)


def _parsed(value: Any, loads: Loads) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return loads(value)
    except Rejected:
        raise
    except ValueError:
        raise Rejected(Reason.TEXT_NOT_JSON) from None


def _messages(turns: Any, loads: Loads) -> tuple[Message, ...]:
    turns = _parsed(turns, loads)
    if not isinstance(turns, list):
        raise Rejected(Reason.NO_CONVERSATION)
    if not turns:
        raise Rejected(Reason.NO_TURNS)
    return tuple(message_of(turn, loads) for turn in turns)


def _prompt_and_answer(row: dict[str, Any], loads: Loads) -> tuple[Message, ...]:
    prompt, answer = _first(row, _PROMPTS), _first(row, _ANSWERS)
    if prompt is None:
        raise Rejected(Reason.NO_CONVERSATION)
    found: list[Message] = []
    if row.get("system"):
        found.append(Message("system", _text(row["system"])))
    history = row.get("history") or []
    if not isinstance(history, list):
        raise Rejected(Reason.NOT_A_TURN)
    for pair in history:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise Rejected(Reason.NOT_A_TURN)
        found += [Message("user", _text(pair[0])), Message("assistant", _text(pair[1]))]
    if isinstance(prompt, list):
        found += _messages(prompt, loads)
    else:
        extra = _text(row["input"]) if row.get("input") else ""
        found.append(Message("user", _text(prompt) + ("\n\n" + extra if extra else "")))
    if isinstance(answer, dict):
        answer = [answer]
    if isinstance(answer, list):
        found += _messages(answer, loads)
    elif answer is not None:
        found.append(Message("assistant", _text(answer)))
    return tuple(found)


def _text(content: Any) -> str:
    """A content's text: a string, or a list of text parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Rejected(Reason.NOT_TEXT)
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind in _PARTS:
            raise Rejected(_PARTS[kind])
        if kind != "text" or not isinstance(part.get("text"), str):
            raise Rejected(Reason.NOT_TEXT)
        texts.append(part["text"])
    return "".join(texts)


def _reasoning(turn: dict[str, Any]) -> str | None:
    found = _first(turn, ("reasoning_content", "reasoning"))
    if found is not None and not isinstance(found, str):
        raise Rejected(Reason.BAD_REASONING)
    return found


def _tool_calls(turn: dict[str, Any], loads: Loads) -> tuple[ToolCall, ...]:
    calls = _parsed(turn.get("tool_calls"), loads)
    if not calls:
        legacy = turn.get("function_call")
        calls = [] if legacy is None else [legacy]
    if not isinstance(calls, list):
        raise Rejected(Reason.BAD_TOOL_CALL)
    return tuple(map(_tool_call, calls))


def _spoken_calls(value: Any, loads: Loads) -> tuple[ToolCall, ...]:
    """The call that a turn of its own makes, as JSON text: an object with name and arguments, or several in a list."""
    try:
        calls = loads(value) if isinstance(value, str) else value
    except ValueError:
        raise Rejected(Reason.BAD_TOOL_CALL) from None
    calls = calls if isinstance(calls, list) else [calls]
    if not calls:
        raise Rejected(Reason.BAD_TOOL_CALL)
    return tuple(map(_tool_call, calls))


def _tool_call(call: Any) -> ToolCall:
    if not isinstance(call, dict) or call.get("type") not in (None, "function"):
        raise Rejected(Reason.BAD_TOOL_CALL)
    function = call.get("function") if call.get("function") is not None else call
    if not isinstance(function, dict):
        raise Rejected(Reason.BAD_TOOL_CALL)
    name, arguments, number = function.get("name"), function.get("arguments"), call.get("id")
    if not isinstance(name, str) or not name or not (number is None or isinstance(number, str)):
        raise Rejected(Reason.BAD_TOOL_CALL)
    if arguments is None:
        arguments = {}
    if isinstance(arguments, dict):
        arguments = json.dumps(arguments, ensure_ascii=False)
    if not isinstance(arguments, str):
        raise Rejected(Reason.BAD_TOOL_CALL)
    return ToolCall(name, arguments, number)


def _tools(value: Any, loads: Loads) -> tuple[dict[str, Any], ...]:
    tools = _parsed(value, loads) if value else []
    if not isinstance(tools, list):
        raise Rejected(Reason.BAD_TOOLS)
    found = []
    for tool in tools:
        if not isinstance(tool, dict):
            raise Rejected(Reason.BAD_TOOLS)
        whole = tool if "function" in tool else {"type": "function", "function": tool}
        function = whole["function"]
        if whole.get("type", "function") != "function" or not isinstance(function, dict):
            raise Rejected(Reason.BAD_TOOLS)
        if not isinstance(function.get("name"), str) or not function["name"]:
            raise Rejected(Reason.BAD_TOOLS)
        found.append(whole)
    return tuple(found)
