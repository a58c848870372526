"""A verifier's tokenizer, from tokenizer.json, else from the tiktoken.model that Kimi is published with."""

import os
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Encoding
from tokenizers import Tokenizer as Backend

from errors import UserError
from kimi_adapters import tiktoken_file


class Tokenizer:
    """Encodes plain text: the text of a special token ("<|im_end|>") becomes ordinary tokens, so that what a user
    writes can neither end a turn nor begin one. UserError: neither file, or one that cannot be read."""

    def __init__(self, directory: str | os.PathLike[str]):
        self.path = Path(directory) / "tokenizer.json"
        published = Path(directory) / tiktoken_file.FILE
        if published.exists() and not self.path.exists():
            self.path = published
            self._backend = tiktoken_file.read_backend(Path(directory))
        else:
            self._backend = self._read()
        self._backend.encode_special_tokens = True
        self._backend.no_truncation()
        self._backend.no_padding()

    def _read(self) -> Backend:
        try:
            with open(self.path, encoding="utf-8") as file:
                return Backend.from_str(file.read())
        except OSError as error:
            raise UserError(
                f"{self.path} cannot be read ({error.strerror}); give a directory that has a tokenizer.json."
            ) from error
        except Exception as error:  # the library raises the bare class
            raise UserError(f"{self.path} is not a tokenizer ({error}); restore it.") from error

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text; nothing is added before or after."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
        """Plain texts as the backend's encodings (`ids`, `offsets`, `char_to_token`), which is faster than one by one."""
        found: list[Encoding] = self._backend.encode_batch(list(texts), add_special_tokens=False)
        return found

    def decode(self, ids: Sequence[int], keep_special: bool = False) -> str:
        """The text of token ids, without special tokens unless asked for."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=not keep_special)
        return text

    def token_id(self, token: str) -> int:
        """The id of a token by its text; UserError when the vocabulary has none such."""
        found: int | None = self._backend.token_to_id(token)
        if found is None:
            raise UserError(f"{self.path} has no token {token!r}; set verifier.chat_format to the verifier's own.")
        return found

    def has_token(self, token: str) -> bool:
        return self._backend.token_to_id(token) is not None

    def special_ids(self) -> list[int]:
        """Ids of the special tokens, rising; those that tiktoken's kind only sets aside are no use to anybody."""
        added = self._backend.get_added_tokens_decoder()
        named = {i for i, token in added.items() if token.special and token.content != tiktoken_file.reserved_name(i)}
        return sorted(named)

    @property
    def vocab_size(self) -> int:
        """How many tokens there are, added ones included; a model's table may have more rows."""
        size: int = self._backend.get_vocab_size(with_added_tokens=True)
        return size
