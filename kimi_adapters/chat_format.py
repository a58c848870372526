"""What a chat format is: how it writes turns, and what it cannot write."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from kimi_adapters.chat_encoding import Piece, Turn
from kimi_adapters.chat_messages import Conversation
from kimi_adapters.chat_reasons import Reason, Rejected


@dataclass(frozen=True)
class Writes:
    """What a format writes beside text; the rest is a reject, never left out in silence."""

    tools: bool = False
    tool_calls: bool = False
    tool_results: bool = False
    thinking: bool = False


@dataclass(frozen=True)
class ChatFormat(ABC):
    """A way to write conversations. ``end`` closes a turn; generation stops at ``stops``, ``end`` among them."""

    name: str
    end: str
    stops: tuple[str, ...]
    writes: Writes

    @abstractmethod
    def turns(self, conversation: Conversation) -> list[Turn]:
        """The turns as written; of a conversation that ``check`` lets pass."""

    @abstractmethod
    def opening(self, thinking: bool) -> Turn:
        """What stands before the assistant's next answer: the end of a generation prompt."""

    def prompt(self, conversation: Conversation, thinking: bool) -> list[Turn]:
        """The turns so far, and what stands before the assistant's next answer."""
        return [*self.turns(conversation), self.opening(thinking)]

    def check(self, conversation: Conversation) -> None:
        """Raise ``Rejected`` where the conversation holds what this format does not write."""
        if conversation.tools and not self.writes.tools:
            raise Rejected(Reason.FORMAT_TOOLS)
        for message in conversation.messages:
            if message.tool_calls and not self.writes.tool_calls:
                raise Rejected(Reason.FORMAT_TOOL_CALLS)
            if message.role == "tool" and not self.writes.tool_results:
                raise Rejected(Reason.FORMAT_TOOL_RESULTS)
            # Tags inside a content are text that the template writes as it stands; reasoning apart would be dropped.
            if message.reasoning and not self.writes.thinking:
                raise Rejected(Reason.FORMAT_THINKING)


def mark(text: str, said: bool = False) -> Piece:
    """A special token."""
    return Piece(text, said, mark=True)


def tag(text: str, said: bool = False) -> Piece:
    """A token where the vocabulary has it, text elsewhere."""
    return Piece(text, said, tag=True)
