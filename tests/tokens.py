"""What tests ask of a tokenizer beside what the project does."""

from kimi_adapters.tokenizer import Tokenizer


def encode_with_starts(tokenizer: Tokenizer, text: str) -> tuple[list[int], list[int]]:
    """Token ids, and for each the index of its first character in ``text``."""
    (encoding,) = tokenizer.encode_batch([text])
    return encoding.ids, [start for start, _ in encoding.offsets]
