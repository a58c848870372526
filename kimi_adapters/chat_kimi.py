"""Kimi-K2.5's format, as its published template writes it: role marks, a tools declaration, a section of tool calls, thinking.

The template keeps reasoning after the last answer that called no tool and empties it before; with thinking off it empties all.
A whole conversation is written as it stood when its last answer was given: that one's own reasoning stays, as the model wrote
it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from kimi_adapters.chat_encoding import Piece, Turn
from kimi_adapters.chat_format import ChatFormat, Writes, mark
from kimi_adapters.chat_kimi_tools import declare
from kimi_adapters.chat_messages import THINK, THINK_END, Conversation, Message
from kimi_adapters.chat_reasons import Reason, Rejected

_MIDDLE, _END = "<|im_middle|>", "<|im_end|>"
_MARKS = {"user": "<|im_user|>", "assistant": "<|im_assistant|>"}


@dataclass(frozen=True)
class KimiFormat(ChatFormat):
    """See the module."""

    def turns(self, conversation: Conversation) -> list[Turn]:
        return _written(conversation, _last_plain_answer(conversation.messages[:-1]))

    def prompt(self, conversation: Conversation, thinking: bool) -> list[Turn]:
        messages = conversation.messages
        emptied = _last_plain_answer(messages) if thinking else len(messages)
        return [*_written(conversation, emptied), self.opening(thinking)]

    def opening(self, thinking: bool) -> Turn:
        block = [mark(THINK)] if thinking else [mark(THINK), mark(THINK_END)]
        return Turn("assistant", [*_header("assistant", "assistant"), *block])


def _written(conversation: Conversation, emptied: int) -> list[Turn]:
    """The turns, without the reasoning of those up to number ``emptied``."""
    written = []
    if conversation.tools:
        written.append(Turn("system", [*_header("system", "tool_declare"), Piece(declare(conversation.tools)), mark(_END)]))
    calls = _Calls()
    for number, message in enumerate(conversation.messages):
        header = _header(message.role, message.name or message.role)
        if message.role == "assistant":
            body = [*_answer(message, number > emptied), *_section(message, calls)]
        elif message.role == "tool":
            body = [Piece(f"## Return of {calls.answered(message)}\n{message.content}")]
        else:
            body = [Piece(message.content)]
        written.append(Turn(message.role, [*header, *body, mark(_END, message.role == "assistant")]))
    return written


class _Calls:
    """Ids of calls. Where a log has none, they are what the model writes: ``functions.<name>:<count from 0>``, and a result
    without one answers the first open call."""

    def __init__(self) -> None:
        self._count = 0
        self._open: list[str] = []

    def made(self, name: str, given: str | None) -> str:
        """The id of the next call."""
        found = given or f"functions.{name}:{self._count}"
        self._count += 1
        self._open.append(found)
        return found

    def answered(self, message: Message) -> str:
        """The id of the call that a result answers."""
        found = message.tool_call_id or (self._open[0] if self._open else None)
        if found is None:
            raise Rejected(Reason.ORPHAN_RESULT)
        if found in self._open:
            self._open.remove(found)
        return found


def _header(role: str, name: str) -> list[Piece]:
    return [mark(_MARKS.get(role, "<|im_system|>")), Piece(name), mark(_MIDDLE)]


def _last_plain_answer(messages: tuple[Message, ...]) -> int:
    found = (n for n in range(len(messages) - 1, -1, -1) if messages[n].role == "assistant" and not messages[n].tool_calls)
    return next(found, -1)


def _answer(message: Message, keeps: bool) -> Iterator[Piece]:
    """The opening tag is the generation prompt's; so is the closing one where nothing was thought or it was taken out."""
    reasoning, content = message.thought()
    thought = keeps and bool(reasoning)
    yield mark(THINK)
    if thought:
        yield Piece(reasoning, True)
    yield mark(THINK_END, thought)
    yield Piece(content, True)


def _section(message: Message, calls: _Calls) -> Iterator[Piece]:
    if not message.tool_calls:
        return
    yield mark("<|tool_calls_section_begin|>", True)
    for call in message.tool_calls:
        yield mark("<|tool_call_begin|>", True)
        yield Piece(calls.made(call.name, call.id), True)
        yield mark("<|tool_call_argument_begin|>", True)
        yield Piece(call.arguments, True)
        yield mark("<|tool_call_end|>", True)
    yield mark("<|tool_calls_section_end|>", True)


KIMI = KimiFormat(
    name="kimi_k2",
    end=_END,
    stops=(_END, "[EOS]"),
    writes=Writes(tools=True, tool_calls=True, tool_results=True, thinking=True),
)
