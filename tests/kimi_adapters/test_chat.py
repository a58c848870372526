"""Plain chat formats against their Jinja templates, the mask on awkward contents, and formats told by their templates."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from errors import UserError
from kimi_adapters.chat import FORMATS, chat_format, detect_format, prompt_ids, stop_ids
from kimi_adapters.chat_encoding import Piece, Turn, encode_turns
from kimi_adapters.chat_masks import loss_mask, render
from kimi_adapters.chat_plain import PlainFormat
from kimi_adapters.chat_reasons import Rejected
from kimi_adapters.tokenizer import Tokenizer
from tests.tokens import encode_with_starts

LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
    "message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
    "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
    "'\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEMPLATES = {"llama3": LLAMA3, "chatml": CHATML}
CONTENTS = ["Yes.", "\n\nstarts with lines", "  spaces around  ", "", "1. one\n2. two", "a\n"]


@pytest.fixture(scope="module")
def tokenizer(whole_verifier: Path, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The small verifier's tokenizer with Llama 3's special tokens in the places of its own."""
    values = json.loads((whole_verifier / "tokenizer.json").read_text())
    plain = [form for form in FORMATS.values() if isinstance(form, PlainFormat)]
    names = [token for form in plain for token in (*form.begin, *form.header, *form.stops)]
    wanted = iter(dict.fromkeys(name for name in names if name.startswith("<|")))
    for added in values["added_tokens"]:
        old, added["content"] = added["content"], next(wanted, added["content"])
        values["model"]["vocab"][added["content"]] = values["model"]["vocab"].pop(old)
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "tokenizer.json").write_text(json.dumps(values))
    return Tokenizer(folder)


def encode_with_specials(tokenizer: Tokenizer, text: str) -> list[int]:
    """What a library does with a whole rendered conversation: special tokens are found in the text."""
    tokenizer._backend.encode_special_tokens = False
    ids = tokenizer.encode(text)
    tokenizer._backend.encode_special_tokens = True
    return ids


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("content", CONTENTS)
def test_tokens_and_mask_follow_the_template(tokenizer: Tokenizer, name: str, content: str) -> None:
    template = ImmutableSandboxedEnvironment().from_string(TEMPLATES[name])
    talk = [{"role": role, "content": content} for role in ("system", "user", "assistant", "user", "assistant")]
    form = FORMATS[name]
    assert isinstance(form, PlainFormat)
    ids, mask = render(talk, tokenizer, form)
    assert ids == encode_with_specials(tokenizer, template.render(messages=talk, bos_token="<|begin_of_text|>"))
    asked = template.render(messages=talk[:2], bos_token="<|begin_of_text|>", add_generation_prompt=True)
    assert prompt_ids(talk[:2], tokenizer, form) == encode_with_specials(tokenizer, asked)
    end = tokenizer.token_id(form.end)
    closings = [place for place, token in enumerate(ids) if token == end]
    assert [mask[place] for place in closings] == [0, 0, 1, 0, 1]
    said = tokenizer.decode([token for token, on in zip(ids, mask, strict=True) if on])
    # What begins in the header is not the assistant's: a header's last line break may merge with the content's first.
    assert (content.strip() if form.strip_content else content).endswith(said[: len(said) // 2])
    assert mask[: closings[1] + 1] == [0] * (closings[1] + 1)


@pytest.fixture(scope="module")
def plain_tokenizer(whole_verifier: Path) -> Tokenizer:
    return Tokenizer(whole_verifier)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["", "\n", " ", "é\u0301", "👩‍👧", "的"]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(st.tuples(TEXTS, st.booleans()), max_size=5), min_size=1, max_size=4))
def test_a_token_is_supervised_where_it_begins_in_something_said(
    plain_tokenizer: Tokenizer, turns: list[list[tuple[str, bool]]]
) -> None:
    """The reference reads all offsets; the encoder asks for single tokens and shares texts that come again."""
    tokenizer = plain_tokenizer
    written = [
        Turn("assistant", [Piece(text, said) for text, said in turn] + [Piece("<|im_end|>", True, mark=True)]) for turn in turns
    ]
    ids: list[int] = []
    mask: list[int] = []
    for turn in turns:
        found, starts = encode_with_starts(tokenizer, "".join(text for text, _ in turn))
        said_at = [said for text, said in turn for _ in text]
        ids += [*found, tokenizer.token_id("<|im_end|>")]
        mask += [int(said_at[start]) for start in starts] + [1]
    both = encode_turns([written, written[::-1]], tokenizer)
    assert (both[0].ids, loss_mask(both[0])) == (ids, mask)
    assert [start for start, _ in both[0].turns] == [0, *[i + 1 for i, t in enumerate(ids) if t == ids[-1]][:-1]]
    assert [token for part in both[0].parts for token in ids[part.start : part.end]] == ids


def test_stops_are_those_of_the_vocabulary(tokenizer: Tokenizer, whole_verifier: Path) -> None:
    assert [tokenizer.decode([i], keep_special=True) for i in stop_ids(tokenizer, FORMATS["llama3"])] == [
        "<|eot_id|>",
        "<|end_of_text|>",
    ]
    assert stop_ids(Tokenizer(whole_verifier), FORMATS["smollm2"]) == [2, 0]
    with pytest.raises(UserError, match="verifier.chat_format"):
        stop_ids(Tokenizer(whole_verifier), FORMATS["llama3"])


QWEN3 = '{%- if enable_thinking %}<|im_start|> last_query_index <tool_response> {\\"name\\": <function-name>} You are provided'
KIMI = "<|im_system|>tool_declare<|im_middle|>{{ tools_ts_str }}<|im_end|>"
KNOWN = {**TEMPLATES, "qwen3": QWEN3, "kimi_k2": KIMI}


def test_formats_are_told_by_their_templates(whole_verifier: Path, tmp_path: Path) -> None:
    assert detect_format(whole_verifier) == "smollm2"
    for name, template in KNOWN.items():
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
        assert detect_format(tmp_path) == name
        (tmp_path / "tokenizer_config.json").write_text("{}")
        (tmp_path / "chat_template.jinja").write_text(template)
        assert detect_format(tmp_path) == name
        (tmp_path / "chat_template.jinja").unlink()
    first_k2 = KIMI.replace("tools_ts_str", "tools | tojson")
    unknown = ["", CHATML + "You are Qwen", LLAMA3 + "Cutting Knowledge Date", "[INST]", first_k2, KIMI + "You are Kimi, an AI"]
    for template in [*unknown, QWEN3.replace("enable_thinking", "")]:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
        with pytest.raises(UserError, match="set verifier.chat_format to one of chatml, smollm2, llama3, qwen3, kimi_k2"):
            detect_format(tmp_path)


@pytest.mark.parametrize("name", ["chatml", "smollm2", "llama3"])
def test_what_a_plain_format_cannot_write_is_rejected(tokenizer: Tokenizer, name: str) -> None:
    call = {"function": {"name": "f", "arguments": "{}"}}
    for message, reason in (
        ({"role": "tool", "content": "x"}, "writes no tool results"),
        ({"role": "assistant", "content": "x", "tool_calls": [call]}, "writes no tool calls"),
        ({"role": "assistant", "content": "x", "reasoning_content": "hm"}, "writes no thinking"),
        ({"role": "wizard", "content": "x"}, "unknown role"),
    ):
        with pytest.raises(Rejected, match=reason):
            render([message], tokenizer, FORMATS[name])


def test_thinking_inside_the_content_stays_text_where_the_format_knows_none(tokenizer: Tokenizer) -> None:
    ids, _ = render([{"role": "assistant", "content": "<think>hm</think>Yes"}], tokenizer, FORMATS["chatml"])
    assert "<think>hm</think>Yes" in tokenizer.decode(ids)


def test_names_that_are_not_known() -> None:
    with pytest.raises(UserError, match="choose one of"):
        chat_format("vicuna")
