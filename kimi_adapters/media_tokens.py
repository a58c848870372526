"""Tokens in whose place an engine puts what the verifier saw: here they would be embedded as words, and mean nothing."""

from kimi_adapters.tokenizer import Tokenizer

PLACEHOLDERS = ("<|media_pad|>", "<|image_pad|>", "<|video_pad|>")  # Kimi's, and Qwen's two


def placeholder_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """The ids of those that a verifier has."""
    return frozenset(tokenizer.token_id(token) for token in PLACEHOLDERS if tokenizer.has_token(token))
