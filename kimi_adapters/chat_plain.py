"""Formats of text turns alone: a header, the content, an end token."""

from dataclasses import dataclass
from functools import cache

from kimi_adapters.chat_encoding import Piece, Turn
from kimi_adapters.chat_format import ChatFormat, Writes, mark
from kimi_adapters.chat_messages import Conversation


@dataclass(frozen=True)
class PlainFormat(ChatFormat):
    """Parts of ``begin`` and ``header`` that begin with "<|" are special tokens, other parts are text.

    ``begin`` opens a conversation, ``header`` a turn, and ``end`` closes it, followed by ``after``. A header's last part is
    text and is tokenised together with the content, as it is when the template is applied as a whole. ``default_system``
    is said when a conversation has no system turn.
    """

    begin: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    after: str = ""
    strip_content: bool = False
    default_system: str | None = None

    def turns(self, conversation: Conversation) -> list[Turn]:
        said = [(message.role, message.content) for message in conversation.messages]
        if self.default_system and not (said and said[0][0] == "system"):
            said.insert(0, ("system", self.default_system))
        written = [self._turn(role, content) for role, content in said]
        if written:
            written[0].pieces[:0] = [mark(token) for token in self.begin]
        return written

    def opening(self, thinking: bool) -> Turn:
        return Turn("assistant", list(_header(self.header, "assistant")))

    def _turn(self, role: str, content: str) -> Turn:
        said = role == "assistant"
        text = content.strip() if self.strip_content else content
        return Turn(role, [*_header(self.header, role), Piece(text, said), mark(self.end, said), Piece(self.after)])


@cache
def _header(parts: tuple[str, ...], role: str) -> tuple[Piece, ...]:
    return tuple(mark(part) if part.startswith("<|") else Piece(part.format(role=role)) for part in parts)


def _chatml(name: str, default_system: str | None) -> PlainFormat:
    return PlainFormat(
        name=name,
        end="<|im_end|>",
        stops=("<|im_end|>", "<|endoftext|>"),
        writes=Writes(),
        header=("<|im_start|>", "{role}\n"),
        after="\n",
        default_system=default_system,
    )


CHATML = _chatml("chatml", None)
SMOLLM2 = _chatml("smollm2", "You are a helpful AI assistant named SmolLM, trained by Hugging Face")
LLAMA3 = PlainFormat(
    name="llama3",
    end="<|eot_id|>",
    stops=("<|eot_id|>", "<|end_of_text|>"),
    writes=Writes(),
    begin=("<|begin_of_text|>",),
    header=("<|start_header_id|>", "{role}", "<|end_header_id|>", "\n\n"),
    strip_content=True,
)
