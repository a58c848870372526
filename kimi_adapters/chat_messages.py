"""A conversation as all chat formats take it, whatever the spelling it came in."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

ROLES = ("system", "user", "assistant", "tool")
THINK, THINK_END = "<think>", "</think>"


@dataclass(frozen=True)
class ToolCall:
    """A call of a function; ``arguments`` is the JSON text as it was said."""

    name: str
    arguments: str
    id: str | None = None


@dataclass(frozen=True)
class Message:
    """A turn. ``reasoning`` is None where none was given apart; ``name`` is a speaker's, or a tool's that answers."""

    role: str
    content: str = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None

    def thought(self) -> tuple[str, str]:
        """Reasoning and what is said after it.

        Reasoning given apart wins; else what stands before ``</think>`` in an assistant's content is taken for it,
        with or without the opening tag: a generation prompt that ends with ``<think>`` is not part of the answer.
        """
        if self.reasoning is not None or self.role != "assistant" or THINK_END not in self.content:
            return self.reasoning or "", self.content
        before, _, after = self.content.partition(THINK_END)
        opening, tag, reasoning = before.partition(THINK)
        if tag and opening.strip():
            return "", self.content  # the tags are spoken of, not used
        return reasoning if tag else before, after

    def texts(self) -> Iterator[str]:
        """All that the turn says, in order."""
        if self.reasoning:
            yield self.reasoning
        yield self.content
        for call in self.tool_calls:
            yield call.name
            yield call.arguments


@dataclass(frozen=True)
class Conversation:
    """Turns in order, and the tools that were declared, each in OpenAI's shape ``{"type": "function", "function"}``."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()

    def first_user(self) -> str | None:
        """What the user said first."""
        return next((message.content for message in self.messages if message.role == "user"), None)

    @property
    def thinks(self) -> bool:
        """Whether an assistant's turn holds reasoning."""
        return any(message.role == "assistant" and message.thought()[0].strip() for message in self.messages)

    @property
    def uses_tools(self) -> bool:
        """Whether tools are declared, called or answer."""
        return bool(self.tools) or any(message.tool_calls or message.role == "tool" for message in self.messages)
