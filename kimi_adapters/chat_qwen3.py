"""Qwen3's format, as the published template with ``enable_thinking`` writes it: ChatML, Hermes tools, <think>.

Reasoning is written for assistant turns after the last user query and left out before it, as the model was trained.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from kimi_adapters.chat_encoding import Piece, Turn
from kimi_adapters.chat_format import ChatFormat, Writes, mark, tag
from kimi_adapters.chat_messages import THINK, THINK_END, Conversation, Message

_START, _END = "<|im_start|>", "<|im_end|>"
_BEFORE_TOOLS = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_AFTER_TOOLS = "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
_SHAPE = '\n{"name": <function-name>, "arguments": <args-json-object>}\n'


@dataclass(frozen=True)
class Qwen3Format(ChatFormat):
    """See the module."""

    def turns(self, conversation: Conversation) -> list[Turn]:
        messages = list(conversation.messages)
        written = []
        system = messages[0].content if messages and messages[0].role == "system" else None
        if conversation.tools:
            declared = Piece("".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in conversation.tools))
            intro = Piece((system + "\n\n" if system is not None else "") + _BEFORE_TOOLS)
            example = [tag("<tool_call>"), tag("</tool_call>"), Piece(" XML tags:\n")]
            shape = [tag("<tool_call>"), Piece(_SHAPE), tag("</tool_call>")]
            written.append(_turn("system", [intro, declared, Piece(_AFTER_TOOLS), *example, *shape]))
            messages = messages[1:] if system is not None else messages
        query = _last_query(messages)
        number = 0
        while number < len(messages):
            message = messages[number]
            if message.role == "tool":
                end = next((n for n in range(number, len(messages)) if messages[n].role != "tool"), len(messages))
                written.append(_results(messages[number:end]))
                number = end
                continue
            if message.role == "assistant":
                last = number == len(messages) - 1
                written.append(_turn("assistant", list(_answer(message, number > query, last)), said=True))
            else:
                written.append(_turn(message.role, [Piece(message.content)]))
            number += 1
        return written

    def opening(self, thinking: bool) -> Turn:
        block = [] if thinking else _empty_block()
        return Turn("assistant", [mark(_START), Piece("assistant\n"), *block])


def _turn(role: str, body: list[Piece], said: bool = False) -> Turn:
    return Turn(role, [mark(_START), Piece(f"{role}\n"), *body, mark(_END, said), Piece("\n")])


def _empty_block() -> list[Piece]:
    return [tag(THINK), Piece("\n\n"), tag(THINK_END), Piece("\n\n")]


def _last_query(messages: list[Message]) -> int:
    """The last user turn that is no tool's result in disguise; the last turn where there is none."""
    for number in range(len(messages) - 1, -1, -1):
        content = messages[number].content
        wrapped = content.startswith("<tool_response>") and content.endswith("</tool_response>")
        if messages[number].role == "user" and not wrapped:
            return number
    return len(messages) - 1


def _answer(message: Message, current: bool, last: bool) -> Iterator[Piece]:
    reasoning, content = message.thought()
    content = content if message.reasoning is not None or content == message.content else content.lstrip("\n")
    reasoning = reasoning.strip("\n")
    if current and reasoning:
        yield from (tag(THINK, True), Piece(f"\n{reasoning}\n", True), tag(THINK_END, True), Piece("\n\n", True))
        content = content.lstrip("\n")
    elif current and last:
        yield from _empty_block()  # what the generation prompt ends with when thinking is off: not said
        content = content.lstrip("\n")
    yield Piece(content, True)
    for number, call in enumerate(message.tool_calls):
        if number or content:
            yield Piece("\n", True)
        yield tag("<tool_call>", True)
        yield Piece(f'\n{{"name": "{call.name}", "arguments": {call.arguments}}}\n', True)
        yield tag("</tool_call>", True)


def _results(messages: list[Message]) -> Turn:
    """Results of tools, together in one user turn."""
    pieces = [mark(_START), Piece("user")]
    for message in messages:
        pieces += [Piece("\n"), tag("<tool_response>"), Piece(f"\n{message.content}\n"), tag("</tool_response>")]
    return Turn("tool", [*pieces, mark(_END), Piece("\n")])


QWEN3 = Qwen3Format(
    name="qwen3",
    end=_END,
    stops=(_END, "<|endoftext|>"),
    writes=Writes(tools=True, tool_calls=True, tool_results=True, thinking=True),
)
