"""The endpoint of the settings: checked at plan time, then opened in the child of a stage that asks it."""

import os
from typing import Any

from errors import UserError
from tasks.settings import Settings


def check(settings: Settings, asks: str) -> None:
    """Refuse an endpoint that cannot be asked; ``asks`` is the setting that wants it."""
    chosen = settings.endpoint
    if chosen.url is None:
        raise UserError(f"{asks} asks an endpoint, and endpoint.url is empty: give its address")
    key(chosen.api_key_env)


def knobs(settings: Settings) -> dict[str, Any]:
    """What a node is told of the endpoint, none of it in its key: where it is, how to ask it, which variable holds the key."""
    return settings.endpoint.model_dump(exclude={"model"})


def key(variable: str | None) -> str | None:
    """The key that an environment variable holds, None where none is named. ``UserError``: it is not set, or is no header."""
    if variable is None:
        return None
    found = os.environ.get(variable, "").strip()
    if not found:
        raise UserError(f"endpoint.api_key_env names {variable}, which is not set in the environment: export it")
    if not all("!" <= character <= "~" for character in found):  # an HTTP library would name it in its error
        raise UserError(f"the key in {variable} holds blanks or characters that no header takes: export it again")
    return found


def client(knobs: dict[str, Any], model: str, url: str | None = None) -> Any:
    """A client of the endpoint of ``knobs``, or of ``url`` with the same manners."""
    from kimi_adapters.engine_client import EngineClient

    chosen = {name: knobs[name] for name in ("timeout", "attempts", "backoff", "concurrency")}
    return EngineClient(url or knobs["url"], model, key=key(knobs["api_key_env"]), **chosen)
