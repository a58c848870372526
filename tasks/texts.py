"""Token ids as text again, for people."""

from collections.abc import Callable, Sequence
from pathlib import Path


def decoder(verifier: Path | str) -> Callable[[Sequence[int]], str]:
    """What decodes ids by the tokenizer of a verifier's directory, special tokens left out."""
    from kimi_adapters.tokenizer import Tokenizer

    return Tokenizer(verifier).decode
