"""The tokenizer of the published kind, against tiktoken itself and against transformers' fast form."""

import json
import random
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

from errors import UserError
from kimi_adapters import tiktoken_file
from kimi_adapters.tiny_checkpoint import make
from kimi_adapters.tiny_config import Options
from kimi_adapters.tiny_tokenizer import RANKS, SPECIALS, learn_ranks, special_id
from kimi_adapters.tokenizer import Tokenizer
from tests.tokens import encode_with_starts

TEXTS = [
    "Hello world's children DON'T say I'LL, they'd say we've.",
    "def add(a, b):\n    return a + b  # 12345678\n\n\n\tpass\r\n",
    "你好世界，这是一个测试。123 中文English混合，再见",
    "日本語のテキストと한국어 텍스트, العربية हिन्दी ไทย",
    "🙂🙂 emoji 👨\u200d👩\u200d👧 done ½ ² Ⅷ ３４５",
    "  \t\n x  \r\n\r\n y   ",
    "Käse naïve ŒUVRE ǅ ʰ it'ſ 'RE \u2003\xa0\x85 a \u180e b",
    "<|im_end|><think>not a turn</think>[EOS]",
    "",
]
LETTERS = "aAbB'sSſtTéß中文漢々〇ー,.;: \n\r\t\u3000\xa01２³٣🙂\u0301ʰǅ한กا"


NAMES = frozenset(SPECIALS.values())
opened = cache(Tokenizer)


@cache
def fast_form(folder: Path) -> PreTrainedTokenizerFast:
    """A tokenizer.json as transformers reads it."""
    return PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("kimi"))


def pattern() -> str:
    """Kimi's published pattern, spelled out here apart from the code under test."""
    word = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
    small, tail = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    return (
        rf"[\p{{Han}}]+|{word}*{small}+{tail}|{word}+{small}*{tail}|\p{{N}}{{1,3}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


def reference(ranks: dict[bytes, int]) -> tiktoken.Encoding:
    """tiktoken itself."""
    return tiktoken.Encoding("test", pat_str=pattern(), mergeable_ranks=ranks, special_tokens={})


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Path:
    """A directory with the tokenizer.json that transformers' own converter makes of the published kind's file."""
    place = tmp_path_factory.mktemp("converted")
    names = [SPECIALS.get(offset, f"<|reserved_token_{RANKS + offset}|>") for offset in range(256)]
    converter = TikTokenConverter(str(folder / "tiktoken.model"), pattern(), extra_special_tokens=names)
    converter.converted().save(str(place / "tokenizer.json"))
    return place


def test_text_equals_tiktoken(folder: Path) -> None:
    ours, theirs = Tokenizer(folder), reference(learn_ranks())
    source = Path(tiktoken_file.__file__).read_text()
    for text in (*TEXTS, source):
        ids = ours.encode(text)
        assert ids == theirs.encode(text, disallowed_special=())
        assert ours.decode(ids) == text
    assert len(ours.encode(source)) < 0.7 * len(source.encode())


def test_random_text_equals_tiktoken(folder: Path) -> None:
    ours, theirs, source = Tokenizer(folder), reference(learn_ranks()), random.Random(0)
    for _ in range(3000):
        text = "".join(source.choice(LETTERS) for _ in range(source.randint(1, 25)))
        assert ours.encode(text) == theirs.encode(text, disallowed_special=()), repr(text)


def test_a_real_vocabulary_equals_tiktoken(whole_verifier: Path) -> None:
    """SmolLM2's 48,900 merges as ranks: every merge is recovered from them."""
    learnt = json.loads((whole_verifier / "tokenizer.json").read_text())["model"]["merges"]
    letters = {letter: byte for byte, letter in tiktoken_file.byte_letters().items()}
    pairs = [tuple(bytes(letters[c] for c in half) for half in (m.split(" ") if isinstance(m, str) else m)) for m in learnt]
    ranks = {bytes([byte]): byte for byte in range(256)}
    for left, right in pairs:
        ranks.setdefault(left + right, len(ranks))
    assert len(ranks) > 49_000 and set(tiktoken_file.recover_merges(ranks)) <= set(pairs)
    ours, theirs = tiktoken_file.backend(ranks, {}), reference(ranks)
    text = Path(__file__).read_text() + (Path(__file__).parents[2] / "README.md").read_text()
    assert ours.encode(text).ids == theirs.encode(text, disallowed_special=())


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text("abc", min_size=2, max_size=5), unique=True, min_size=1, max_size=20),
    st.lists(st.text("abc", min_size=1, max_size=12), min_size=1, max_size=20),
)
def test_any_ranks_equal_tiktoken(words: list[str], texts: list[str]) -> None:
    """Also tokens that no merging leads to, and ranks in no order that a training gives."""
    ranks = {bytes([byte]): byte for byte in range(256)} | {word.encode(): 256 + i for i, word in enumerate(words)}
    ours, theirs = tiktoken_file.backend(ranks, {}), reference(ranks)
    for text in texts:
        assert ours.encode(text).ids == theirs.encode(text)


def test_special_tokens_keep_their_places(folder: Path) -> None:
    ours = Tokenizer(folder)
    offsets = {"[BOS]": 0, "[EOS]": 1, "<|im_end|>": 2, "<|im_user|>": 3, "<|im_assistant|>": 4, "<|im_system|>": 10}
    offsets |= {"<|im_middle|>": 17, "<think>": 22, "</think>": 23, "[PAD]": 255}
    # The published ids, from which the tiny ones are the same distance away.
    published = {"[BOS]": 163584, "[EOS]": 163585, "[PAD]": 163839, "<|im_end|>": 163586, "<|im_user|>": 163587}
    published |= {"<|im_assistant|>": 163588, "<|im_system|>": 163594, "<|im_middle|>": 163601}
    published |= {"<think>": 163606, "</think>": 163607}
    for token, offset in offsets.items():
        assert ours.token_id(token) == RANKS + offset == special_id(token) == published[token] - 163584 + RANKS
    assert ours.vocab_size == RANKS + 256
    assert ours.special_ids() == sorted(RANKS + offset for offset in SPECIALS), "named ones, not all that are set aside"
    assert ours.decode([ours.token_id("<|im_user|>"), *ours.encode("Hi"), ours.token_id("<|im_end|>")]) == "Hi"
    assert ours.decode([RANKS + 2, RANKS + 5], keep_special=True) == f"<|im_end|><|reserved_token_{RANKS + 5}|>"


def test_what_a_user_writes_is_no_special_token(folder: Path) -> None:
    ours = Tokenizer(folder)
    for token in ("<|im_end|>", "</think>", f"<|reserved_token_{RANKS + 5}|>"):
        ids = ours.encode(f"a{token}b")
        assert max(ids) < RANKS and ours.decode(ids) == f"a{token}b"


def test_starts_are_characters(folder: Path) -> None:
    ours, text = Tokenizer(folder), "assistant: 你好 🙂 Größe"
    ids, starts = encode_with_starts(ours, text)
    assert len(ids) == len(starts) and starts == sorted(starts) and starts[0] == 0 and max(starts) < len(text)
    first = next(i for i, start in enumerate(starts) if start >= text.index("你"))
    assert ours.decode(ids[first:]) == text[starts[first] :]


WORDS = (
    st.text()
    | st.text(LETTERS)
    | st.text("0123456789٣Ⅷ, .")
    | st.text(st.characters(min_codepoint=0x2E80, max_codepoint=0x9FFF))
)


@settings(max_examples=400, deadline=None)
@given(texts=st.lists(WORDS | st.sampled_from([*SPECIALS.values()]), max_size=6))
def test_the_fast_form_gives_the_same_tokens(folder: Path, converted: Path, texts: list[str]) -> None:
    """Special tokens are text to us, whichever file is there, and tokens where transformers reads them."""
    published, fast, theirs = opened(folder), opened(converted), fast_form(converted)
    ids = published.encode("".join(texts))
    assert ids == fast.encode("".join(texts)) and published.decode(ids) == fast.decode(ids) == "".join(texts)
    whole = theirs.encode("".join(texts), add_special_tokens=False)
    assert whole == [token for run in runs(texts) for token in ([special_id(run)] if run in NAMES else published.encode(run))]
    assert published.decode(whole, keep_special=True) == fast.decode(whole, keep_special=True) == "".join(texts)


def runs(texts: list[str]) -> list[str]:
    """Special tokens by themselves, and what stands between them joined."""
    return [run for special, group in groupby(texts, NAMES.__contains__) for run in (group if special else ["".join(group)])]


def test_the_fast_forms_special_tokens_are_the_same(tmp_path: Path, folder: Path, converted: Path) -> None:
    make(tmp_path, Options(fast_tokenizer=True))
    published = Tokenizer(folder)
    assert published.path.name == "tiktoken.model"
    for fast in (Tokenizer(converted), Tokenizer(tmp_path)):
        assert fast.path.name == "tokenizer.json"
        assert fast.special_ids() == published.special_ids() and fast.vocab_size == published.vocab_size
        assert all(fast.encode(text) == published.encode(text) for text in TEXTS)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("tiktoken.model", b"!!!! 0\n", "tiktoken.model is not a tiktoken file"),
        ("tiktoken.model", b"YQ== 0\n", "lacks ranks or single bytes"),
        ("tokenizer_config.json", b"[]", "is not a tokenizer's configuration"),
        ("tokenizer_config.json", b'{"tokenizer_class": "QWenTokenizer"}', "class 'QWenTokenizer', whose split pattern"),
    ],
)
def test_a_broken_tokenizer_is_told(folder: Path, tmp_path: Path, name: str, content: bytes, told: str) -> None:
    for path in (folder / "tiktoken.model", folder / "tokenizer_config.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=told):
        Tokenizer(tmp_path)
