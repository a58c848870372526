"""The chat formats, and prompts in them. They are Python, so that the code digest sees them; masks are made elsewhere."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from errors import UserError
from kimi_adapters.chat_encoding import encode_turns
from kimi_adapters.chat_format import ChatFormat
from kimi_adapters.chat_kimi import KIMI
from kimi_adapters.chat_messages import Conversation
from kimi_adapters.chat_plain import CHATML, LLAMA3, SMOLLM2
from kimi_adapters.chat_qwen3 import QWEN3
from kimi_adapters.chat_rows import message_of
from kimi_adapters.tokenizer import Tokenizer

FORMATS: dict[str, ChatFormat] = {form.name: form for form in (CHATML, SMOLLM2, LLAMA3, QWEN3, KIMI)}


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
    found = _format_of(template)
    if found is None:
        raise UserError(
            f"{directory} has no chat template that is known here; set verifier.chat_format to one of {', '.join(FORMATS)}."
        )
    return found


def _format_of(template: str) -> str | None:
    if "<|im_start|>" in template:
        if (SMOLLM2.default_system or "") in template:
            return SMOLLM2.name
        # The hybrid Qwen3: those of 2507 write thinking another way and have no switch for it.
        if all(part in template for part in ("enable_thinking", "last_query_index", "<tool_response>", '{\\"name\\": <')):
            return QWEN3.name
        return None if "You are" in template else CHATML.name
    # K2.5 and later declare tools as TypeScript; the first K2 and K2-Thinking write a system turn of their own.
    if "<|im_middle|>" in template:
        return KIMI.name if "tools_ts_str" in template and "You are Kimi" not in template else None
    # Llama 3.1 and later always write a system turn with dates.
    if "<|start_header_id|>" in template and "Cutting Knowledge Date" not in template:
        return LLAMA3.name
    return None


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


def conversation_of_turns(messages: Sequence[Mapping[str, Any]], form: ChatFormat) -> Conversation:
    """A conversation of {role, content} turns; ``Rejected``, a ValueError, where the format cannot write it."""
    conversation = Conversation(tuple(message_of(dict(message)) for message in messages))
    form.check(conversation)
    return conversation


def prompt_ids(
    messages: Sequence[Mapping[str, Any]], tokenizer: Tokenizer, form: ChatFormat, thinking: bool = True
) -> list[int]:
    """Token ids of the turns so far and the header of the assistant's next: what generation starts from."""
    (encoded,) = encode_turns([form.prompt(conversation_of_turns(messages, form), thinking)], tokenizer)
    return encoded.ids


def stop_ids(tokenizer: Tokenizer, form: ChatFormat) -> list[int]:
    """Tokens that end an answer: the end-of-turn token first, then the end of text where the vocabulary has it."""
    return [tokenizer.token_id(form.end)] + [
        tokenizer.token_id(stop) for stop in form.stops if stop != form.end and tokenizer.has_token(stop)
    ]
