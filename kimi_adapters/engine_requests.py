"""Requests to an OpenAI-compatible endpoint: repeats with back-off and jitter, and errors in one sentence."""

import random
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from errors import UserError
from kimi_adapters.engine_answers import Unusable

Result = TypeVar("Result")
_AGAIN = {408, 409, 425, 429, 500, 502, 503, 504}
_LONGEST_WAIT = 60.0  # seconds
_TOLD = 200  # characters of an endpoint's own words


class EndpointFailed(UserError):
    """The endpoint as a whole is of no use: it is down, refuses the key, or does not serve the model."""


class NoRoute(EndpointFailed):
    """The endpoint has no such path, or no such model."""


class RequestFailed(Exception):
    """One request has no answer; the message is the reason, without texts of conversations. Others may have one."""


class _Again(Exception):
    """An error that may pass."""


class Requests:
    """Sends requests to ``url``; any number of threads may. Parameters as ``EngineClient``'s."""

    def __init__(self, url: str, key: str | None, timeout: float, attempts: int, backoff: float, connections: int) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self.stopping = threading.Event()  # once set, nobody waits for a repeat
        self.repeats, self._lock = 0, threading.Lock()  # how often an answer was asked for again
        self._key, self._timeout, self._attempts, self._backoff = key, timeout, attempts, backoff
        self._http = httpx.Client(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(timeout, connect=min(timeout, 10.0)),
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            trust_env=urlsplit(url).hostname not in ("127.0.0.1", "localhost", "::1"),  # no proxy leads to this machine
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def send(
        self,
        path: str,
        read: Callable[[httpx.Response], Result],
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Result:
        """What ``read`` makes of the response to a GET, or to a POST where there is a body. Its ``Unusable`` is a reason to ask
        again; ``EndpointFailed`` or ``RequestFailed`` tell the reason of the last try.
        """
        failed: Exception = EndpointFailed(f"the endpoint {self.url} was given up")
        wait = 0.0
        for attempt in range(self._attempts):
            if attempt and self.stopping.wait(max(wait, self._pause(attempt))):
                break
            if attempt and body is not None:
                with self._lock:
                    self.repeats += 1
            try:
                response = self._http.request("GET" if body is None else "POST", self.url + path, json=body, headers=headers)
                wait = _asked_to_wait(response)
                self._judge(path, response)
                return read(response)
            except (_Again, Unusable) as error:
                failed = RequestFailed(str(error))
            except (httpx.ConnectError, httpx.ConnectTimeout):
                tries = f"{attempt + 1} tries" if attempt else "one try"
                failed = EndpointFailed(
                    f"nothing answers at the endpoint {self.url} after {tries}: start it, or correct its address"
                )
            except httpx.TimeoutException:
                failed = RequestFailed(f"no answer within {self._timeout:g} s")
            except httpx.RequestError as error:
                failed = RequestFailed(f"the answer broke off ({type(error).__name__})")
        raise failed

    def _pause(self, attempt: int) -> float:
        return min(_LONGEST_WAIT, self._backoff * 2.0 ** (attempt - 1)) * random.uniform(0.5, 1.5)

    def _judge(self, path: str, response: httpx.Response) -> None:
        code = response.status_code
        if code < 400:
            return
        said = self._said(response)
        if code in _AGAIN:
            raise _Again(f"status {code}{said}")
        if code in (401, 403):
            raise EndpointFailed(
                f"the endpoint {self.url} refuses the key (status {code}): set the variable that endpoint.api_key_env names"
            )
        if code == 404:
            raise NoRoute(f"the endpoint {self.url} has no {path} (status 404{said}): correct its address or the model's name")
        raise RequestFailed(f"status {code}{said}")

    def _said(self, response: httpx.Response) -> str:
        """The endpoint's own words about an error, short, without the key and without the input that it may quote."""
        try:
            found = response.json()
            error = found.get("error", found)
            words = str(error.get("message", "")) if isinstance(error, dict) else str(error)
        except (ValueError, AttributeError):
            return ""
        words = " ".join(words.partition("'input'")[0].split())
        if self._key:
            words = words.replace(self._key, "…")
        return f": {words[:_TOLD]}" if words else ""


def json_of(response: httpx.Response) -> Any:
    """The response's JSON; ``Unusable`` where it is none."""
    try:
        return response.json()
    except ValueError:  # also text that is not in UTF-8
        raise Unusable("the answer is not JSON") from None


def _asked_to_wait(response: httpx.Response) -> float:
    try:
        return min(_LONGEST_WAIT, max(0.0, float(response.headers.get("Retry-After", 0))))
    except ValueError:
        return 0.0
