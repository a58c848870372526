"""What an OpenAI-compatible endpoint answers, read strictly: an answer that is not whole is none."""

import re
from dataclasses import dataclass
from typing import Any, TypeGuard


class Unusable(Exception):
    """An answer that cannot be taken; the message is the reason."""


@dataclass(frozen=True)
class Answer:
    """One answer.

    ``prompt_ids`` and ``ids`` are the engine's own tokens, a stop token that was reached included (vLLM's
    ``return_token_ids``; None elsewhere); ``tokens`` how many it counted; ``finish`` is ``stop`` or ``length``.
    """

    text: str
    reasoning: str | None
    finish: str
    prompt_ids: list[int] | None
    ids: list[int] | None
    tokens: int


def read_chat(found: Any, name: str) -> Answer:
    """The answer of a chat completion that was asked for under the request id ``name``; ``Unusable`` otherwise."""
    choice = _choice(found, name)
    message = choice.get("message")
    if not isinstance(message, dict):
        raise Unusable("the answer has no message")
    reasoning = message.get("reasoning_content") or message.get("reasoning") or None
    text = message.get("content")
    if not isinstance(text, str | None) or not isinstance(reasoning, str | None):
        raise Unusable("the answer's content is no text")
    return _answer(found, choice, text or "", reasoning, found.get("prompt_token_ids"))


def read_completion(found: Any, name: str) -> Answer:
    """The same of a text completion."""
    choice = _choice(found, name)
    if not isinstance(choice.get("text"), str):
        raise Unusable("the answer has no text")
    return _answer(found, choice, choice["text"], None, choice.get("prompt_token_ids"))


def _choice(found: Any, name: str) -> dict[str, Any]:
    choices = found.get("choices") if isinstance(found, dict) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise Unusable("the answer has not one choice")
    run, _, number = name.rpartition("-")
    echoed = re.search(rf"{re.escape(run)}-(\d+)", str(found.get("id")))  # vLLM's ids hold the request's own
    if echoed and echoed[1] != number:
        raise Unusable("the answer belongs to another request")
    return choices[0]


def _answer(found: dict[str, Any], choice: dict[str, Any], text: str, reasoning: str | None, prompt_ids: Any) -> Answer:
    finish = choice.get("finish_reason")
    if finish not in ("stop", "length"):
        raise Unusable(f"the answer ended by {finish}")
    ids = choice.get("token_ids")
    usage = found.get("usage")
    counted = usage.get("completion_tokens") if isinstance(usage, dict) else None
    if ids is not None or prompt_ids is not None:
        if not (_are_ids(ids) and _are_ids(prompt_ids)):
            raise Unusable("the answer's token ids are not whole")
        if isinstance(counted, int) and counted != len(ids):
            raise Unusable(f"the answer has {len(ids)} token ids and counts {counted}")
        counted = len(ids)
    if not (text or reasoning or ids):
        raise Unusable("the answer is empty")
    return Answer(text, reasoning, finish, prompt_ids, ids, counted if isinstance(counted, int) else 0)


def _are_ids(ids: Any) -> TypeGuard[list[int]]:
    return isinstance(ids, list) and bool(ids) and all(type(one) is int and one >= 0 for one in ids)
