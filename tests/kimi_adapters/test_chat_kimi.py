"""Kimi's format against the tiny checkpoint's Jinja template, rendered and tokenised by transformers."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from kimi_adapters.chat_encoding import Turn, encode_turns
from kimi_adapters.chat_kimi import KIMI
from kimi_adapters.chat_kimi_tools import declare
from kimi_adapters.chat_rows import conversation_of
from kimi_adapters.tiny_checkpoint import make
from kimi_adapters.tiny_config import Options
from kimi_adapters.tiny_tokenizer import SPECIALS
from kimi_adapters.tokenizer import Tokenizer

Message = dict[str, Any]
TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}},
}
# No special tokens: what a user writes is none to us, and one to the template's reader; see test_tiktoken_file.py.
TEXTS = (st.text(max_size=12) | st.sampled_from(["Hi.", "\n\n", " x ", "今天", "{{ m }}", "<b>"])).filter(
    lambda text: not any(name in text for name in SPECIALS.values())
)
PARTS = st.builds(lambda texts: [{"type": "text", "text": text} for text in texts], st.lists(TEXTS, min_size=1, max_size=2))
CALLS = st.lists(
    st.builds(
        lambda number, arguments: {"id": f"functions.look:{number}", "function": {"name": "look", "arguments": arguments}},
        st.integers(0, 9),
        st.just('{"at":  "é"}') | st.dictionaries(st.sampled_from(["at", "é"]), st.none() | st.integers() | TEXTS, max_size=2),
    ),
    min_size=1,
    max_size=2,
)


def message(role: str, **more: st.SearchStrategy[Any]) -> st.SearchStrategy[Message]:
    return st.fixed_dictionaries({"role": st.just(role), **more})


REASONING = {"reasoning_content": st.none() | st.just("") | TEXTS}
MESSAGES = st.one_of(
    message("system", content=TEXTS),
    message("user", content=TEXTS | PARTS),
    message("user", content=TEXTS, name=st.just("Ann")),
    message("assistant", content=TEXTS, **REASONING),
    message("assistant", content=TEXTS | st.none(), tool_calls=CALLS, **REASONING),
    message("tool", content=TEXTS, tool_call_id=st.just("functions.look:0"), name=st.none() | st.just("look")),
)
TALKS = st.lists(MESSAGES, min_size=1, max_size=7)
CASES = given(talk=TALKS, tools=st.just([]) | st.just([TOOL]), thinking=st.sampled_from([True, False]))
MANY = settings(max_examples=400, deadline=None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("kimi"), Options(fast_tokenizer=True))


@pytest.fixture(scope="module")
def ours(folder: Path) -> Tokenizer:
    return Tokenizer(folder)


@pytest.fixture(scope="module")
def theirs(folder: Path) -> PreTrainedTokenizerFast:
    found = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    found.chat_template = (folder / "chat_template.jinja").read_text()
    return found


def rendered(theirs: PreTrainedTokenizerFast, talk: list[Message], tools: list[Any], **more: Any) -> str:
    """The template's text. Kimi's own tokenizer declares tools as TypeScript before it renders."""
    declared = {"tools": tools, "tools_ts_str": declare(tools)} if tools else {}
    return str(theirs.apply_chat_template(talk, tokenize=False, **declared, **more))


def same(turns: list[Turn], ours: Tokenizer, theirs: PreTrainedTokenizerFast, text: str) -> bool:
    """Whether turns have the text and its tokens."""
    (encoded,) = encode_turns([turns], ours)
    assert "".join(piece.text for turn in turns for piece in turn.pieces) == text
    return encoded.ids == theirs.encode(text, add_special_tokens=False)


@MANY
@CASES
def test_a_prompt_is_what_the_template_asks_with(
    ours: Tokenizer, theirs: PreTrainedTokenizerFast, talk: list[Message], tools: list[Any], thinking: bool
) -> None:
    turns = KIMI.prompt(conversation_of({"messages": talk, "tools": tools}), thinking)
    assert same(turns, ours, theirs, rendered(theirs, talk, tools, add_generation_prompt=True, thinking=thinking))
    if thinking:
        assert same(turns, ours, theirs, rendered(theirs, talk, tools, add_generation_prompt=True)), "on unless told"


@MANY
@CASES
def test_a_conversation_is_what_the_template_asked_with_and_what_was_said(
    ours: Tokenizer, theirs: PreTrainedTokenizerFast, talk: list[Message], tools: list[Any], thinking: bool
) -> None:
    """A last answer without calls stands with its reasoning, which the template itself takes out once it has been given."""
    said = {"role": "assistant", "content": "So.", "reasoning_content": "Hm." if thinking else None}
    asked = rendered(theirs, talk, tools, add_generation_prompt=True)
    answered = asked + f"{said['reasoning_content'] or ''}</think>So.<|im_end|>"
    assert same(KIMI.turns(conversation_of({"messages": [*talk, said], "tools": tools})), ours, theirs, answered)
    if talk[-1]["role"] != "assistant" or talk[-1].get("tool_calls"):
        turns = KIMI.turns(conversation_of({"messages": talk, "tools": tools}))
        assert same(turns, ours, theirs, rendered(theirs, talk, tools))


def test_the_template_writes_the_published_turns(theirs: PreTrainedTokenizerFast) -> None:
    """Spelled out: reasoning is gone up to the last answer that called no tool, and there after it unless thinking is off."""
    call = {"id": "functions.look:0", "function": {"name": "look", "arguments": "{}"}}
    talk: list[Message] = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello.", "reasoning_content": "Greet."},
        {"role": "user", "content": "Look"},
        {"role": "assistant", "content": "", "reasoning_content": "I must.", "tool_calls": [call]},
        {"role": "user", "content": "Now"},
    ]
    section = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|><|im_end|><|im_user|>user<|im_middle|>Now<|im_end|>"
    )
    before = (
        "<|im_user|>user<|im_middle|>Hi<|im_end|><|im_assistant|>assistant<|im_middle|><think></think>Hello.<|im_end|>"
        "<|im_user|>user<|im_middle|>Look<|im_end|><|im_assistant|>assistant<|im_middle|>"
    )
    asked = "<|im_assistant|>assistant<|im_middle|>"
    assert rendered(theirs, talk, []) == f"{before}<think>I must.</think>{section}"
    assert rendered(theirs, talk, [], add_generation_prompt=True) == f"{before}<think>I must.</think>{section}{asked}<think>"
    off = rendered(theirs, talk, [], add_generation_prompt=True, thinking=False)
    assert off == f"{before}<think></think>{section}{asked}<think></think>"
