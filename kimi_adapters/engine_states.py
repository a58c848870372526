"""Hidden states drawn from a vLLM that extracts them, through speculators' client: token ids go there, files come back.

A file holds `hidden_states` [T, S, H] and `token_ids` I64 [T]. It stays in the engine's folder until it has been taken over:
a shard of Kimi-K2.5 has 7.5 GB of states, and those of a few samples are in memory at once.
"""

import asyncio
import logging
import random
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor

from errors import UserError

_LONGEST_WAIT = 60.0  # seconds
_REFUSED = (400, 413, 422)  # statuses of an engine that will not take this sample
STATES, IDS = "hidden_states", "token_ids"


class SampleFailed(Exception):
    """The engine gave no states of one sample, and may give them later; the message is the reason, without its tokens."""


@dataclass(frozen=True)
class Unusable:
    """A sample of which this engine gives nothing that can be taken, whenever it is asked; and why, without its tokens."""

    reason: str


@dataclass(frozen=True)
class Source:
    """An engine and the ``folder`` that it writes states into, as this host sees it (None: as the engine names it); the other
    fields as ``EngineClient``'s."""

    url: str
    model: str
    folder: Path | None
    key: str | None = field(default=None, repr=False)
    timeout: float = 600.0
    attempts: int = 6
    backoff: float = 0.5
    concurrency: int = 16

    def local(self, path: str) -> Path:
        """A file that the engine names, where this host has it."""
        return self.folder / Path(path).name if self.folder else Path(path)


@dataclass(frozen=True)
class Shape:
    """What a token's states must be: how many, how wide, in which of torch's dtypes ("float32")."""

    states: int
    width: int
    dtype: str


def draw(source: Source, samples: Sequence[Sequence[int]], shape: Shape, told: Callable[[int], None]) -> list[Path | Unusable]:
    """For each sample of token ids, in their order, a checked file or why it cannot have one; ``told`` hears of each.

    A sample whose answer is for other tokens, too short, not finite or none at all is asked for again, ``attempts`` times. One
    whose states are not finite, or that the engine refuses, is unusable then; else that is a ``SampleFailed`` (its number and
    the reason), or a ``UserError`` (the engine as a whole), and no file stays. Nor do those of requests that were given up, as
    far as the engine names its files by the requests' ids, as vLLM does.
    """
    name, drawn = f"eyas-{uuid.uuid4().hex[:12]}", list[Path | Unusable]()
    try:
        drawn = asyncio.run(_draw(source, samples, shape, told, name))
    finally:
        if source.folder is not None:
            sweep(source.folder, name, files_of(drawn), _LONGEST_WAIT)
    return drawn


def files_of(drawn: Iterable[Path | Unusable]) -> list[Path]:
    """The files among what was drawn."""
    return [one for one in drawn if isinstance(one, Path)]


async def _draw(
    source: Source, samples: Sequence[Sequence[int]], shape: Shape, told: Callable[[int], None], name: str
) -> list[Path | Unusable]:
    import openai

    logging.getLogger("speculators.data_generation.vllm_client").disabled = True  # it would write token ids into logs
    drawn: dict[int, Path | Unusable] = {}
    gate = asyncio.Semaphore(source.concurrency)
    base = source.url.rstrip("/").removesuffix("/v1") + "/v1"

    async def one(number: int) -> None:
        async with gate:
            drawn[number] = await _until_right(client, source, f"{name}-{number}", number, list(samples[number]), shape)
        told(len(drawn))

    here = urlsplit(base).hostname in ("127.0.0.1", "localhost", "::1")  # no proxy leads to this machine
    http = openai.DefaultAsyncHttpxClient(trust_env=not here)
    async with openai.AsyncClient(base_url=base, api_key=source.key or "none", max_retries=0, http_client=http) as client:
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(len(samples)):
                    group.create_task(one(number))
        except BaseExceptionGroup as errors:
            remove(files_of(drawn.values()))
            raise errors.exceptions[0] from None
    return [drawn[number] for number in range(len(samples))]


async def _until_right(client: Any, source: Source, name: str, number: int, ids: list[int], shape: Shape) -> Path | Unusable:
    fault: str | Unusable | None = ""
    for attempt in range(source.attempts):
        if attempt:
            await asyncio.sleep(min(_LONGEST_WAIT, source.backoff * 2.0 ** (attempt - 1)) * random.uniform(0.5, 1.5))
        named = client.with_options(default_headers={"X-Request-Id": f"{name}-{attempt}"})
        found = await _ask(named, source, ids)
        if not isinstance(found, Path):
            fault = found
            continue
        fault = await asyncio.to_thread(fault_of, found, ids, shape, source.timeout)
        if fault is None:
            return found
        remove([found])
    if isinstance(fault, Unusable):
        return fault
    raise SampleFailed(f"sample {number} got no states from the engine in {source.attempts} tries: {fault}")


async def _ask(client: Any, source: Source, ids: list[int]) -> Path | str | Unusable:
    """The file of an answer, or why there is none. ``UserError`` where no other request would fare better."""
    import openai
    from speculators.data_generation.vllm_client import InvalidResponseError, generate_hidden_states_async

    item = {"input_ids": ids}
    try:
        path, _ = await generate_hidden_states_async(client, source.model, item, timeout=source.timeout, max_retries=0)
    except (openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError) as error:
        raise UserError(
            f"the endpoint {source.url} refuses the request (status {error.status_code}): correct its address, endpoint.model "
            "or the key"
        ) from None
    except openai.APIStatusError as error:
        reason = f"status {error.status_code}"
        return Unusable(reason) if error.status_code in _REFUSED else reason
    except (openai.APITimeoutError, TimeoutError):
        return f"no answer within {source.timeout:g} s"
    except openai.APIConnectionError:
        return f"nothing answers at {source.url}"
    except InvalidResponseError as error:
        mixed = "mismatch" in str(error)  # its words quote the tokens
        return "the answer is for other tokens" if mixed else "the answer names no file of states"
    except (openai.OpenAIError, ValueError, AttributeError, TypeError, IndexError, KeyError) as error:
        return f"the answer cannot be read ({type(error).__name__})"
    return source.local(path)


def fault_of(path: Path, ids: Sequence[int], shape: Shape, timeout: float) -> str | Unusable | None:
    """Why a file is not what was asked for; None where it is."""
    try:
        found = read(path, timeout)
    except TimeoutError:
        return f"its file was not finished after {timeout:g} s"
    except Exception as error:  # safetensors' own error is a bare one
        return f"its file of states cannot be read ({type(error).__name__})"
    if found is None:
        return not_there(path)
    if found.get(IDS) is None or found.get(STATES) is None or found[IDS].tolist() != list(ids):
        return "the file is of other tokens"
    states: Tensor = found[STATES]
    if states.shape != (len(ids), shape.states, shape.width):
        return f"the file has states of shape {list(states.shape)}, not {[len(ids), shape.states, shape.width]}"
    if states.dtype != getattr(torch, shape.dtype):
        return f"the file is in {str(states.dtype).removeprefix('torch.')}, and hidden_states.compute_dtype is {shape.dtype}"
    return None if bool(states.isfinite().all()) else Unusable("its states are not finite")


def read(path: Path, timeout: float) -> dict[str, Tensor] | None:
    """A file's tensors once the engine has let go of its lock; None where there is no such file.

    The engine writes at its next step, and with a long prompt that one takes longer than the 10 s that FileTransfer waits.
    """
    from hs_connectors import FileTransfer
    from hs_connectors.transfer import wait_for_lock

    with suppress(FileNotFoundError):
        wait_for_lock(f"{path}.lock", timeout)
    found: dict[str, Tensor] | None = FileTransfer(path.parent).get_generated({"hidden_states_path": str(path)})
    return found


def not_there(path: Path) -> str:
    """The words for a file that the engine names and that is not here."""
    return f"its file {path.name} is not in {path.parent}: set endpoint.states_folder to the folder that the engine writes into"


def remove(paths: Iterable[Path]) -> None:
    """Deletes files of states and their locks."""
    for path in paths:
        for each in (path, path.with_name(path.name + ".lock")):
            with suppress(OSError):
                each.unlink()


def sweep(folder: Path, name: str, kept: Iterable[Path], timeout: float) -> None:
    """Deletes the files of requests whose ids begin with ``name``, except those ``kept``.

    vLLM writes the states of a request that it was told to give up, too, and holds their lock until they are there.
    """
    from hs_connectors.transfer import wait_for_lock

    names, deadline = {path.name for path in kept}, time.monotonic() + timeout
    left = [path for path in folder.glob(f"*{name}-*") if path.name.removesuffix(".lock") not in names]
    for path in left:
        if path.suffix == ".lock":
            with suppress(OSError):  # a TimeoutError is one
                wait_for_lock(str(path), max(0.0, deadline - time.monotonic()))
            left.append(path.with_suffix(""))
    remove(left)


def state_of(path: Path, place: int) -> Tensor:
    """State number ``place`` of a file, [T, H]; the others are not read into memory."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        found: Tensor = file.get_slice(STATES)[:, place]
    return found
