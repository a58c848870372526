"""Why a row is no conversation that can be trained on: the closed list."""

from enum import StrEnum


class Reason(StrEnum):
    """Why a row is rejected. The values stand in artifacts and reports, so none of them may quote a row."""

    LINE_TOO_LONG = "line too long"
    NOT_UTF8 = "not UTF-8"
    NOT_JSON = "not JSON"
    NOT_FINITE = "a number that is not finite"
    DUPLICATE_KEY = "a key twice in one object"
    TOO_DEEP = "nested too deep"
    NOT_AN_OBJECT = "row is no object"
    NO_CONVERSATION = "no conversation in it"
    TEXT_NOT_JSON = "messages or tools are a string that is not JSON"
    NO_TURNS = "conversation without turns"
    NOT_A_TURN = "turn is no object"
    NO_ROLE = "turn without a role"
    UNKNOWN_ROLE = "unknown role"
    NO_CONTENT = "turn without content"
    NOT_TEXT = "content is not text"
    IMAGE = "image or video in content"
    AUDIO = "audio in content"
    BAD_REASONING = "reasoning is not text"
    BAD_TOOLS = "tools are no list of functions"
    BAD_TOOL_CALL = "tool call is no call of a function"
    ORPHAN_RESULT = "tool result without its call"
    BAD_ID = "id is neither text nor number"
    SURROGATE = "lone surrogate in text"
    NO_ASSISTANT = "no assistant turn"
    NOTHING_SUPERVISED = "no supervised token"
    TOO_LONG = "too long"
    IDS_INCOMPLETE = "token ids of one part only"
    IDS_NOT_NUMBERS = "token ids are no list of whole numbers"
    IDS_NOT_IN_VOCABULARY = "token id outside the vocabulary"
    IDS_BAD_MASK = "loss mask does not fit its token ids"
    FORMAT_TOOLS = "chat format writes no tools"
    FORMAT_TOOL_CALLS = "chat format writes no tool calls"
    FORMAT_TOOL_RESULTS = "chat format writes no tool results"
    FORMAT_THINKING = "chat format writes no thinking"
    FORMAT_SCHEMA = "chat format cannot declare a tool's schema"


class Rejected(ValueError):
    """A row that is no sample; its message is the reason and never the row's text."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason
