"""A tokenizer of the kind Kimi is published with, `tiktoken.model`, made into the `tokenizers` backend.

The file has a line a token, base64 of its bytes and its rank, which is its id. Special tokens take the ids after them;
their names are in tokenizer_config.json's `added_tokens_decoder`. No remote code is run: the split pattern is here.
"""

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from errors import UserError

FILE = "tiktoken.model"
SPECIAL_TOKENS = 256  # ids set aside for special tokens after the ranks
_CLASSES = ("TikTokenTokenizer", "KimiTokenizer", "Kimi2_6Tokenizer")

# Runs of Chinese characters by themselves; words with a leading space or mark and an English contraction's tail, split
# before a capital that follows small letters; digits by threes; punctuation with line ends; white space.
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_TAIL = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
SPLIT_PATTERN = "|".join(
    [
        r"[\p{Han}]+",
        rf"{_LEAD}{_UPPER}*{_LOWER}+{_TAIL}",
        rf"{_LEAD}{_UPPER}+{_LOWER}*{_TAIL}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)


def read_backend(directory: Path) -> Tokenizer:
    """The backend of `directory`/tiktoken.model; every one of the SPECIAL_TOKENS is special in it.

    UserError: a file that is not of this kind, or of another model than Kimi, whose split pattern is not known here.
    """
    return backend(_read_ranks(directory / FILE), _special_names(directory / "tokenizer_config.json"))


def backend(ranks: Mapping[bytes, int], names: Mapping[int, str]) -> Tokenizer:
    """The backend of ranks 0…n - 1 and special tokens at n…n + 255, unnamed ones as `<|reserved_token_{id}|>`."""
    letters = byte_letters()
    spelled = {token: "".join(letters[byte] for byte in token) for token in ranks}
    merges = [(spelled[left], spelled[right]) for left, right in recover_merges(ranks)]
    vocabulary = {spelled[token]: rank for token, rank in ranks.items()}
    # tiktoken takes a piece that is a token as it is, whether or not merging leads there.
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    ids = range(len(ranks), len(ranks) + SPECIAL_TOKENS)
    made.add_special_tokens([AddedToken(names.get(i, reserved_name(i)), special=True, normalized=False) for i in ids])
    return made


def reserved_name(token_id: int) -> str:
    """What a special token without a name is called."""
    return f"<|reserved_token_{token_id}|>"


def recover_merges(ranks: Mapping[bytes, int]) -> Iterator[tuple[bytes, bytes]]:
    """The pairs that merge, in order of rank.

    tiktoken joins the neighbours whose join has the lowest rank. What happens inside a token's bytes does not depend on
    what is around them, so a token always comes of the two parts that its own bytes come down to before the last join.
    Where one split alone has both parts in the vocabulary there is nothing to try.
    """
    for token, _ in sorted(ranks.items(), key=lambda item: item[1]):
        splits = [i for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        if len(splits) == 1:
            yield token[: splits[0]], token[splits[0] :]
        elif splits:
            parts = _two_parts(token, ranks)
            if parts is not None:
                yield parts


def _two_parts(token: bytes, ranks: Mapping[bytes, int]) -> tuple[bytes, bytes] | None:
    """What a token's bytes come down to before the last join, the lowest rank joined first; None if they get stuck."""
    parts = [token[i : i + 1] for i in range(len(token))]
    nowhere = len(ranks)
    while len(parts) > 2:
        joins = [ranks.get(a + b, nowhere) for a, b in zip(parts, parts[1:], strict=False)]
        lowest = min(joins)
        if lowest == nowhere:
            return None
        at = joins.index(lowest)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]


def _read_ranks(path: Path) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    try:
        with open(path, "rb") as file:
            for line in file:
                if line.strip():
                    token, rank = line.split()
                    ranks[base64.b64decode(token, validate=True)] = int(rank)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); give a directory that has a tokenizer.") from error
    except (ValueError, binascii.Error) as error:
        raise UserError(f"{path} is not a tiktoken file ({error}); restore it.") from error
    bytes_missing = any(bytes([byte]) not in ranks for byte in range(256))
    if bytes_missing or sorted(ranks.values()) != list(range(len(ranks))):
        raise UserError(f"{path} lacks ranks or single bytes; restore it.")
    return ranks


def _special_names(path: Path) -> dict[int, str]:
    if not path.exists():
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            config: dict[str, Any] = json.load(file)
        kind = config.get("tokenizer_class")
        tokens = {int(i): str(token["content"]) for i, token in (config.get("added_tokens_decoder") or {}).items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path} is not a tokenizer's configuration; restore it.") from error
    if kind is not None and kind not in _CLASSES:
        raise UserError(f"{path} is of the class {kind!r}, whose split pattern is not known; give a tokenizer.json.")
    return tokens


def byte_letters() -> dict[int, str]:
    """GPT-2's printable letter of each byte, as the ByteLevel pre-tokenizer writes them."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}
