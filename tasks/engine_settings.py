"""Settings of the engines that serve the verifier. Data only; a part of ``tasks.settings``."""

import re

from pydantic import Field, field_validator

from tasks.section import Section


class EndpointSettings(Section):
    """An OpenAI-compatible endpoint that serves the verifier, vLLM's first of all. No result depends on its address."""

    url: str | None = Field(None, description="Its address, such as http://127.0.0.1:8000/v1")
    model: str | None = Field(None, description="The name under which it serves the verifier; empty: verifier.name")
    api_key_env: str | None = Field(None, description="NAME of the environment variable that holds the key; not the key")
    states_folder: str | None = Field(
        None,
        description="Where the engine writes hidden states, as this host sees it; for hidden_states.source: engine",
    )
    concurrency: int = Field(16, gt=0, description="Requests at once, over all tasks")
    timeout: float = Field(600.0, gt=0, description="Seconds to wait for one answer")
    attempts: int = Field(6, gt=0, description="Tries of one request")
    backoff: float = Field(0.5, gt=0, description="Seconds before the second try; doubled before each further one")
    max_errors: float = Field(0.02, ge=0, le=1, description="Share of a task's prompts that may stay without an answer")

    @field_validator("url")
    @classmethod
    def _is_address(cls, url: str | None) -> str | None:
        if url is not None and not re.fullmatch(r"https?://[^/@\s]+[^@\s]*", url):
            raise ValueError("write http://host:port/v1, without a user or a password in it")
        return url

    @field_validator("api_key_env")
    @classmethod
    def _is_name(cls, name: str | None) -> str | None:
        if name is not None and not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError("give the NAME of an environment variable, never the key itself")
        return name
