"""Formats with tools and thinking against hand-written strings; what the assistant says stands between « and »."""

import json
from pathlib import Path
from typing import Any

import pytest

from kimi_adapters.chat import FORMATS, prompt_ids
from kimi_adapters.chat_encoding import Piece
from kimi_adapters.chat_kimi_tools import declare
from kimi_adapters.chat_masks import render
from kimi_adapters.chat_reasons import Reason, Rejected
from kimi_adapters.chat_rows import conversation_of
from kimi_adapters.tokenizer import Tokenizer

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a place",
        "parameters": {
            "type": "object",
            "properties": {
                "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
                "place": {"type": "string", "description": "A town", "minLength": 1},
            },
            "required": ["place"],
        },
    },
}
CALL = {
    "id": "functions.get_weather:0",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"place": "Rome"}'},
}
STEPS: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi!", "reasoning_content": "A greeting."},
    {"role": "user", "content": "Weather in Rome?"},
    {"role": "assistant", "content": None, "reasoning_content": "I must look.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": CALL["id"], "content": "sunny"},
    {"role": "assistant", "content": "Sunny.", "reasoning": "It says sunny."},
]


def written(name: str, messages: list[dict[str, Any]], tools: Any = None) -> str:
    """A conversation as a format writes it, with marks around what is said."""
    form = FORMATS[name]
    conversation = conversation_of({"messages": messages, "tools": tools})
    form.check(conversation)
    return marked(piece for turn in form.turns(conversation) for piece in turn.pieces)


def marked(pieces: Any) -> str:
    text, before = "", False
    for piece in [piece for piece in pieces if piece.text] + [Piece("")]:
        text += ("«" if piece.said else "»") * (piece.said != before) + piece.text
        before = piece.said
    return text


def test_qwen3_with_tools_and_thinking() -> None:
    declared = json.dumps(WEATHER)
    assert written("qwen3", STEPS, [WEATHER]) == (
        "<|im_start|>system\nBe brief.\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n" + declared + "\n</tools>\n\n"
        "For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML "
        'tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\n«Hi!<|im_end|>»\n"
        "<|im_start|>user\nWeather in Rome?<|im_end|>\n"
        "<|im_start|>assistant\n«<think>\nI must look.\n</think>\n\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"place": "Rome"}}\n</tool_call><|im_end|>»\n'
        "<|im_start|>user\n<tool_response>\nsunny\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n«<think>\nIt says sunny.\n</think>\n\nSunny.<|im_end|>»\n"
    )


def test_qwen3_without_thinking_does_not_say_the_empty_block() -> None:
    talk = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]
    assert written("qwen3", talk) == (
        "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n«2<|im_end|>»\n"
    )


def test_qwen3_reads_thinking_inside_the_content_and_two_calls_after_text() -> None:
    calls: list[Any] = [CALL, {"function": {"name": "now", "arguments": {"zone": "é"}}}]
    talk: list[dict[str, Any]] = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nLet me see.", "tool_calls": calls},
        {"role": "tool", "content": "a"},
        {"role": "tool", "content": "b"},
    ]
    assert written("qwen3", talk) == (
        "<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\n«<think>\nhm\n</think>\n\nLet me see.\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"place": "Rome"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {"zone": "é"}}\n</tool_call><|im_end|>»\n'
        "<|im_start|>user\n<tool_response>\na\n</tool_response>\n<tool_response>\nb\n</tool_response><|im_end|>\n"
    )


DECLARED = """# Tools

## functions
namespace functions {
// Weather of a place
type get_weather = (_: {
  // A town
  // minLength: 1
  place: string,
  // Default: "C"
  unit?: "C" | "F"
}) => any;
}
"""


def test_kimi_with_tools_and_thinking() -> None:
    assert written("kimi_k2", STEPS, [WEATHER]) == (
        f"<|im_system|>tool_declare<|im_middle|>{DECLARED}<|im_end|>"
        "<|im_system|>system<|im_middle|>Be brief.<|im_end|>"
        "<|im_user|>user<|im_middle|>Hello<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|><think></think>«Hi!<|im_end|>»"
        "<|im_user|>user<|im_middle|>Weather in Rome?<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|><think>«I must look.</think><|tool_calls_section_begin|><|tool_call_begin|>"
        'functions.get_weather:0<|tool_call_argument_begin|>{"place": "Rome"}<|tool_call_end|><|tool_calls_section_end|>'
        "<|im_end|>»"
        "<|im_system|>tool<|im_middle|>## Return of functions.get_weather:0\nsunny<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|><think>«It says sunny.</think>Sunny.<|im_end|>»"
    )


def test_kimi_without_thinking_or_system() -> None:
    talk = [{"role": "user", "content": "1+1?", "name": "Ann"}, {"role": "assistant", "content": "2"}]
    assert written("kimi_k2", talk) == (
        "<|im_user|>Ann<|im_middle|>1+1?<|im_end|><|im_assistant|>assistant<|im_middle|><think></think>«2<|im_end|>»"
    )


def test_kimi_gives_calls_without_an_id_the_one_it_would_write() -> None:
    call = {"function": {"name": "f", "arguments": "{}"}}
    talk: list[dict[str, Any]] = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "", "tool_calls": [call, call]},
        {"role": "tool", "content": "a"},
        {"role": "tool", "name": "f", "content": "b"},
    ]
    assert written("kimi_k2", talk).endswith(
        "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_call_begin|>functions.f:1"
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|><|im_end|>»"
        "<|im_system|>tool<|im_middle|>## Return of functions.f:0\na<|im_end|>"
        "<|im_system|>f<|im_middle|>## Return of functions.f:1\nb<|im_end|>"
    )
    with pytest.raises(Rejected, match="tool result without its call"):
        written("kimi_k2", [*talk, {"role": "tool", "content": "c"}])


def test_kimi_takes_an_answer_that_was_served_after_the_opening_tag() -> None:
    talk = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "hm\n</think>Yes"}]
    assert written("kimi_k2", talk).endswith("<|im_middle|><think>«hm\n</think>Yes<|im_end|>»")
    spoken = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "Write <think>…</think> first."}]
    assert written("kimi_k2", spoken).endswith("<think></think>«Write <think>…</think> first.<|im_end|>»")


def test_tools_are_declared_as_typescript() -> None:
    parameters = {
        "type": "object",
        "$defs": {"Node": {"type": "object", "description": "A node", "properties": {"next": {"$ref": "#/$defs/Node"}}}},
        "properties": {
            "root": {"$ref": "#/$defs/Node"},
            "many": {"type": "array", "items": {"type": "integer", "minimum": 0, "description": "Count"}, "maxItems": 3},
            "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "kinds": {"type": ["string", "integer"], "default": 3},
            "free": {"type": "object", "additionalProperties": {"type": "boolean"}},
        },
        "required": ["root", "many"],
        "additionalProperties": False,
    }
    assert declare([{"function": {"name": "f", "parameters": parameters}}, {"function": {"name": "g"}}]) == (
        "# Tools\n\n## functions\nnamespace functions {\n"
        "// A node\ninterface Node {\n  next?: Node\n}\n"
        "type f = (_: {\n"
        "  // maxItems: 3\n  many: Array<\n    // Count\n    // minimum: 0\n    number\n  >,\n"
        "  root: Node,\n"
        "  either?: string | null,\n"
        "  free?: {\n    [k: string]: boolean\n  },\n"
        "  // Default: 3\n  kinds?: string | number,\n"
        "  [k: string]: never\n"
        "}) => any;\n"
        "type g = (_: {}) => any;\n"
        "}\n"
    )


@pytest.mark.parametrize(
    "schema",
    [{"$ref": "#/$defs/Missing"}, {"oneOf": []}, {"type": "integer", "enum": ["x"]}, {"type": ["date"]}, {"type": 3}, "string"],
)
def test_a_schema_that_has_no_form_is_a_reject(schema: Any) -> None:
    with pytest.raises(Rejected, match="cannot declare a tool's schema"):
        declare([{"function": {"name": "f", "parameters": {"type": "object", "properties": {"x": schema}}}}])


@pytest.fixture(scope="module")
def tokenizer(whole_verifier: Path, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The small verifier's tokenizer with the marks of both formats added; Qwen's tags are no special tokens."""
    values = json.loads((whole_verifier / "tokenizer.json").read_text())
    marks = ["im_user", "im_assistant", "im_system", "im_middle", "tool_calls_section_begin", "tool_calls_section_end"]
    marks += ["tool_call_begin", "tool_call_argument_begin", "tool_call_end"]
    names = [f"<|{mark}|>" for mark in marks] + ["<think>", "</think>", "<tool_call>", "</tool_call>"]
    start = max(values["model"]["vocab"].values()) + 1
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    for number, name in enumerate(names, start):
        values["added_tokens"].append({"id": number, "content": name, "special": name.startswith("<|"), **plain})
    folder = tmp_path_factory.mktemp("marks")
    (folder / "tokenizer.json").write_text(json.dumps(values))
    return Tokenizer(folder)


@pytest.mark.parametrize("name", ["qwen3", "kimi_k2"])
def test_every_supervised_turn_ends_with_its_end_token(tokenizer: Tokenizer, name: str) -> None:
    ids, mask = render(STEPS, tokenizer, FORMATS[name])
    end = tokenizer.token_id("<|im_end|>")
    said = [place for place, on in enumerate(mask) if on and (place + 1 == len(mask) or not mask[place + 1])]
    assert len(said) == 3 and all(ids[place] == end for place in said)
    calls = [on for token, on in zip(ids, mask, strict=True) if token == tokenizer.token_id("</think>")]
    assert calls == ([1, 1] if name == "qwen3" else [0, 1, 1])


@pytest.mark.parametrize(("name", "thinking"), [(n, t) for n in ("qwen3", "kimi_k2") for t in (True, False)])
def test_a_prompt_is_the_beginning_of_the_conversation_that_it_becomes(tokenizer: Tokenizer, name: str, thinking: bool) -> None:
    answer = {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm." if thinking else ""}
    talk = [{"role": "user", "content": "Is it?"}]
    prompt = prompt_ids(talk, tokenizer, FORMATS[name], thinking=thinking)
    ids, mask = render([*talk, answer], tokenizer, FORMATS[name])
    whole, start = (tokenizer.decode(one, keep_special=True) for one in (ids, prompt))
    assert whole.startswith(start)
    said = tokenizer.decode([token for token, on in zip(ids, mask, strict=True) if on], keep_special=True)
    assert whole[len(start) :].removesuffix("\n") == said
    if name == "kimi_k2":  # ends with a mark, so that no token lies across
        assert ids[: len(prompt)] == prompt


def test_reasons_quote_nothing() -> None:
    assert len({reason.value for reason in Reason}) == len(Reason)
