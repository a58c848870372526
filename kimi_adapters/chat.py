"""Conversations to tokens and loss masks. The formats are Python, so that the code digest sees them."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from errors import UserError
from kimi_adapters.tokenizer import Tokenizer

ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class ChatFormat:
    """How turns are written. Parts that begin with "<|" are special tokens, other parts are text.

    `begin` opens a conversation, `header` a turn, and `end`, the end-of-turn token, closes it, followed by `after`.
    A header's last part is text and is tokenised together with the content, as it is when the template is applied as
    a whole. `default_system` is said when a conversation has no system turn. Generation stops at `stops`.
    """

    name: str
    begin: tuple[str, ...]
    header: tuple[str, ...]
    end: str
    after: str
    stops: tuple[str, ...]
    strip_content: bool = False
    default_system: str | None = None


def _chatml(name: str, default_system: str | None) -> ChatFormat:
    return ChatFormat(
        name=name,
        begin=(),
        header=("<|im_start|>", "{role}\n"),
        end="<|im_end|>",
        after="\n",
        stops=("<|im_end|>", "<|endoftext|>"),
        default_system=default_system,
    )


FORMATS = {
    chat_format.name: chat_format
    for chat_format in (
        _chatml("chatml", None),
        _chatml("smollm2", "You are a helpful AI assistant named SmolLM, trained by Hugging Face"),
        ChatFormat(
            name="llama3",
            begin=("<|begin_of_text|>",),
            header=("<|start_header_id|>", "{role}", "<|end_header_id|>", "\n\n"),
            end="<|eot_id|>",
            after="",
            stops=("<|eot_id|>", "<|end_of_text|>"),
            strip_content=True,
        ),
    )
}


def chat_format(name: str) -> ChatFormat:
    """The format of that name; UserError otherwise."""
    if name not in FORMATS:
        raise UserError(f"verifier.chat_format {name!r} is not known; choose one of {', '.join(FORMATS)}.")
    return FORMATS[name]


def detect_format(directory: str | os.PathLike[str]) -> str:
    """The name of the format of a verifier's chat template (chat_template.jinja, else tokenizer_config.json's).

    UserError when there is none, or one whose turns no format of ours writes: a wrong mask trains on nothing.
    """
    template = _chat_template(Path(directory))
    smollm2 = FORMATS["smollm2"].default_system or ""
    if "<|im_start|>" in template:
        if smollm2 in template:
            return "smollm2"
        if "You are" not in template:
            return "chatml"
    # Llama 3.1 and later always write a system turn with dates.
    if "<|start_header_id|>" in template and "Cutting Knowledge Date" not in template:
        return "llama3"
    raise UserError(
        f"{directory} has no chat template that is known here; set verifier.chat_format to one of {', '.join(FORMATS)}."
    )


def _chat_template(directory: Path) -> str:
    jinja, config = directory / "chat_template.jinja", directory / "tokenizer_config.json"
    if jinja.exists():
        with open(jinja, encoding="utf-8") as file:
            return file.read()
    if not config.exists():
        return ""
    try:
        with open(config, encoding="utf-8") as file:
            template = json.load(file).get("chat_template") or ""
    except (ValueError, AttributeError) as error:
        raise UserError(f"{config} is not a JSON object; restore it.") from error
    if isinstance(template, list):
        template = next((item["template"] for item in template if item.get("name") == "default"), "")
    return str(template)


def render(messages: Sequence[Mapping[str, str]], tokenizer: Tokenizer, form: ChatFormat) -> tuple[list[int], list[int]]:
    """Token ids of a conversation of {role, content} turns and its loss mask, of equal length.

    The mask is 1 on what an assistant says: the tokens that begin inside its content, and the end-of-turn token.
    ValueError on a role that is not in ROLES.
    """
    ids, mask = _specials(form.begin, tokenizer), [0] * len(form.begin)
    for role, content in _turns(messages, form):
        said = int(role == "assistant")
        opening, last = _header(role, tokenizer, form)
        body, starts = tokenizer.encode_with_starts(last + content)
        after = tokenizer.encode(form.after)
        ids += [*opening, *body, tokenizer.token_id(form.end), *after]
        mask += [0] * len(opening) + [said * int(start >= len(last)) for start in starts] + [said] + [0] * len(after)
    return ids, mask


def prompt_ids(messages: Sequence[Mapping[str, str]], tokenizer: Tokenizer, form: ChatFormat) -> list[int]:
    """Token ids of the turns so far and the header of the assistant's next: what generation starts from."""
    opening, last = _header("assistant", tokenizer, form)
    return render(messages, tokenizer, form)[0] + opening + tokenizer.encode(last)


def stop_ids(tokenizer: Tokenizer, form: ChatFormat) -> list[int]:
    """Tokens that end an answer: the end-of-turn token first, then the end of text where the vocabulary has it."""
    return [tokenizer.token_id(form.end)] + [
        tokenizer.token_id(stop) for stop in form.stops if stop != form.end and tokenizer.has_token(stop)
    ]


def _turns(messages: Sequence[Mapping[str, str]], form: ChatFormat) -> Iterator[tuple[str, str]]:
    if form.default_system and not (messages and messages[0]["role"] == "system"):
        yield "system", form.default_system
    for message in messages:
        if message["role"] not in ROLES:
            raise ValueError(f"role {message['role']!r} is none of {', '.join(ROLES)}")
        content = message["content"]
        yield message["role"], content.strip() if form.strip_content else content


def _header(role: str, tokenizer: Tokenizer, form: ChatFormat) -> tuple[list[int], str]:
    """The tokens of a turn's header but for its last part, and that part's text."""
    *parts, last = [part.format(role=role) for part in form.header]
    ids: list[int] = []
    for part in parts:
        ids += _specials([part], tokenizer) if part.startswith("<|") else tokenizer.encode(part)
    return ids, last


def _specials(tokens: Sequence[str], tokenizer: Tokenizer) -> list[int]:
    return [tokenizer.token_id(token) for token in tokens]
