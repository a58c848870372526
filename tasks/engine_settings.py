"""Settings of the engines that serve the verifier. Data only; a part of ``tasks.settings``."""

import re
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from tasks.section import Section

_SECRET = "(?:KEY|TOKEN|SECRET|PASSWORD)"
_SECRET_NAME = re.compile(rf"\w*{_SECRET}", re.IGNORECASE)
_SECRET_WORD = re.compile(rf"-[\w-]*{_SECRET}(=.*)?|\w*{_SECRET}=.+", re.IGNORECASE)  # --api-key …, or NAME=value for `env`
_NO_SECRETS = "leave the key out, settings are written down: whoever starts the run exports it, and the engine inherits it"


class EndpointSettings(Section):
    """An OpenAI-compatible endpoint that serves the verifier, vLLM's first of all. No result depends on its address."""

    url: str | None = Field(None, description="Its address, such as http://127.0.0.1:8000/v1")
    plain_url: str | None = Field(
        None, description="Where the same engine serves the verifier without a draft, for acceptance.engine to compare with"
    )
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
    max_errors: float = Field(
        0.02, ge=0, le=1, description="Share of a task's prompts or samples that may stay without an answer"
    )

    @field_validator("url", "plain_url")
    @classmethod
    def _is_address(cls, url: str | None) -> str | None:
        if url is not None and not re.fullmatch(r"https?://[^/@?#\s]+[^@?#\s]*", url):
            raise ValueError("write http://host:port/v1, without a user, a password or a ?query in it")
        return url

    @field_validator("api_key_env")
    @classmethod
    def _is_name(cls, name: str | None) -> str | None:
        if name is not None and not re.fullmatch("[A-Z_][A-Z0-9_]*", name):  # keys have small letters
            raise ValueError("give the NAME of an environment variable, in capitals, never the key itself")
        return name


class EngineSettings(Section):
    """The engine that is started where ``acceptance.engine`` says so: vLLM, in an environment of its own."""

    command: list[str] = Field(["vllm"], min_length=1, description="How it is called: a virtual environment's bin/vllm")
    arguments: list[str] = Field([], description="Further arguments of `vllm serve`, such as --dtype float32 --enforce-eager")
    environment: dict[str, str] = Field({}, description="Variables of its environment; no secrets, they are written down")
    version: str | None = Field(None, description="Its version; empty: that of the package that lies beside the command")
    start_timeout: float = Field(1800.0, gt=0, description="Seconds until it must be ready")

    @field_validator("command", "arguments")
    @classmethod
    def _words_hold_no_key(cls, words: list[str]) -> list[str]:
        if any(_SECRET_WORD.fullmatch(word) for word in words):
            raise ValueError(_NO_SECRETS)
        return words

    @field_validator("environment")
    @classmethod
    def _variables_hold_no_key(cls, variables: dict[str, str]) -> dict[str, str]:
        if any(value and _SECRET_NAME.fullmatch(name) for name, value in variables.items()):
            raise ValueError(_NO_SECRETS)
        return variables


class EngineAcceptance(Section):
    """How the draft is judged in an engine; a part of ``acceptance``."""

    engine: Literal["none", "endpoint", "start"] = Field(
        "none", description="Judge the draft in vLLM, too: one that runs with it at endpoint.url, or one that is started"
    )
    temperatures: list[float] = Field([], description="Temperatures at which the engine answers, beside 0")
    concurrency: int = Field(1, gt=0, description="Prompts that the engine answers at once; speeds depend on it")

    @field_validator("temperatures")
    @classmethod
    def _are_warm(cls, temperatures: list[float]) -> list[float]:
        if any(not 0 < one <= 2 for one in temperatures) or len(set(temperatures)) < len(temperatures):
            raise ValueError("give each once, above 0 and up to 2; 0 is measured anyway")
        return temperatures


class EngineStates(Section):
    """Who computes hidden states; a part of ``hidden_states``."""

    source: Literal["own", "engine"] = Field("own", description="Here, or by the vLLM at endpoint.url that extracts them")
    engine_version: str | None = Field(None, description="That engine's version, as its /version says: states depend on it")

    @model_validator(mode="after")
    def _names_its_version(self) -> Self:
        if self.source == "engine" and not self.engine_version:
            raise ValueError("hidden_states.source is engine: give hidden_states.engine_version, as the engine's /version says")
        return self
