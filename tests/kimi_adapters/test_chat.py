"""Chat formats against their Jinja templates, and the mask on awkward contents."""

import json
from pathlib import Path

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from errors import UserError
from kimi_adapters.chat import FORMATS, chat_format, detect_format, prompt_ids, render, stop_ids
from kimi_adapters.tokenizer import Tokenizer

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
    names = [token for form in FORMATS.values() for token in (*form.begin, *form.header, *form.stops)]
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


def test_stops_are_those_of_the_vocabulary(tokenizer: Tokenizer, whole_verifier: Path) -> None:
    assert [tokenizer.decode([i], keep_special=True) for i in stop_ids(tokenizer, FORMATS["llama3"])] == [
        "<|eot_id|>",
        "<|end_of_text|>",
    ]
    assert stop_ids(Tokenizer(whole_verifier), FORMATS["smollm2"]) == [2, 0]
    with pytest.raises(UserError, match="verifier.chat_format"):
        stop_ids(Tokenizer(whole_verifier), FORMATS["llama3"])


def test_formats_are_told_by_their_templates(whole_verifier: Path, tmp_path: Path) -> None:
    assert detect_format(whole_verifier) == "smollm2"
    for name, template in TEMPLATES.items():
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
        assert detect_format(tmp_path) == name
        (tmp_path / "tokenizer_config.json").write_text("{}")
        (tmp_path / "chat_template.jinja").write_text(template)
        assert detect_format(tmp_path) == name
        (tmp_path / "chat_template.jinja").unlink()
    for unknown in ("", CHATML + "You are Qwen", LLAMA3 + "Cutting Knowledge Date", "[INST]"):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": unknown}))
        with pytest.raises(UserError, match="set verifier.chat_format to one of chatml, smollm2, llama3"):
            detect_format(tmp_path)


def test_roles_and_names_that_are_not_known(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="role 'tool'"):
        render([{"role": "tool", "content": "x"}], tokenizer, FORMATS["chatml"])
    with pytest.raises(UserError, match="choose one of"):
        chat_format("vicuna")
