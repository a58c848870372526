"""The loss mask of a conversation: 1 on what the assistant says. Apart from what writes prompts: a fix here asks none again."""

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Encoding

from kimi_adapters.chat import conversation_of_turns
from kimi_adapters.chat_encoding import Encoded, encode_turns
from kimi_adapters.chat_format import ChatFormat
from kimi_adapters.tokenizer import Tokenizer


def render(messages: Sequence[Mapping[str, Any]], tokenizer: Tokenizer, form: ChatFormat) -> tuple[list[int], list[int]]:
    """Token ids of a conversation of {role, content} turns and its loss mask, of equal length.

    ``Rejected``, a ValueError, where the format cannot write it.
    """
    (encoded,) = encode_turns([form.turns(conversation_of_turns(messages, form))], tokenizer)
    return encoded.ids, loss_mask(encoded)


def loss_mask(encoded: Encoded) -> list[int]:
    """The mask, as long as the ids: 1 on tokens that begin inside an assistant's reasoning, text or tool calls, and on its
    end-of-turn token."""
    mask: list[int] = []
    for start, end, lengths, encoding in encoded.parts:
        if encoding is None or len(lengths) == 1:
            mask += [int(lengths[0][1])] * (end - start)
        else:
            mask += _of_run(encoding, lengths, end - start)
    return mask


def _of_run(encoding: Encoding, lengths: list[tuple[int, bool]], count: int) -> list[int]:
    """The mask of a run of ``count`` tokens over pieces of (characters, said)."""
    mask: list[int] = []
    position = 0
    for length, said in lengths[:-1]:
        position += length
        mask += [int(said)] * (_first_token_at(encoding, position, count) - len(mask))
    return mask + [int(lengths[-1][1])] * (count - len(mask))


def _first_token_at(encoding: Encoding, position: int, count: int) -> int:
    """The first token that begins at or after a character; offsets rise, so this is where the mask may change.

    Asks for single tokens: the list of all offsets costs as much as tokenising.
    """
    token = encoding.char_to_token(position)
    if token is None:  # a character that no token covers, as where a normaliser drops some
        return next((number for number, (start, _) in enumerate(encoding.offsets) if start >= position), count)
    while token < count and (span := encoding.token_to_chars(token)) and span[0] < position:
        token += 1
    return int(token)
