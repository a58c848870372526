"""A small client of an OpenAI-compatible endpoint, vLLM's first of all: answers with token ids, so many at once as agreed."""

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from kimi_adapters.engine_answers import Answer, Unusable, read_chat, read_completion
from kimi_adapters.engine_requests import EndpointFailed, NoRoute, RequestFailed, Requests, json_of

Item = TypeVar("Item")
Result = TypeVar("Result")
Fits = Callable[[Answer], bool]


class EngineClient:
    """Speaks to the endpoint at ``url`` (with or without ``/v1``) about ``model``; any number of threads may.

    ``timeout``: seconds for an answer. ``attempts`` of a request in all; before a repeat it waits ``backoff`` seconds, doubled
    every time, give or take a half. ``key`` goes into the header and nowhere else. Every call may raise ``EndpointFailed`` (a
    ``UserError``: nothing else would be answered, too) or ``RequestFailed`` (this request's own fault, with its reason).
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        key: str | None = None,
        timeout: float = 600.0,
        attempts: int = 6,
        backoff: float = 0.5,
        concurrency: int = 16,
    ) -> None:
        self.model, self._concurrency = model, concurrency
        self._requests = Requests(url, key, timeout, attempts, backoff, concurrency)
        self._name, self._asked, self._lock = f"eyas-{uuid.uuid4().hex[:12]}", 0, threading.Lock()
        self._ids_asked_for = True

    @property
    def url(self) -> str:
        """The address without ``/v1``."""
        return self._requests.url

    @property
    def repeats(self) -> int:
        """How often an answer has been asked for again: the engine may have counted both."""
        return self._requests.repeats

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._requests.close()

    def models(self) -> list[str]:
        """The names of the models that it serves."""
        try:
            return [str(one["id"]) for one in self.get("/v1/models")["data"]]
        except (TypeError, KeyError):
            raise EndpointFailed(f"{self.url}/v1/models is no list of models: correct the endpoint's address") from None

    def require_model(self) -> None:
        """``EndpointFailed`` where the model named is not among those that it serves."""
        served = self.models()
        if self.model not in served:
            raise EndpointFailed(
                f"the endpoint {self.url} serves {', '.join(served) or 'nothing'} and not {self.model}: correct endpoint.model "
                "(or verifier.name), or the endpoint's address"
            )

    def version(self) -> str | None:
        """The engine's version as vLLM tells it; None where the endpoint has no such route."""
        try:
            found = self.get("/version")
        except NoRoute:
            return None
        return str(found["version"]) if isinstance(found, dict) and "version" in found else None

    def metrics(self) -> str:
        """Prometheus' text of /metrics."""
        return self._whole("/metrics", lambda response: response.text)

    def get(self, path: str) -> Any:
        """The JSON at a path, without which the endpoint is of no use."""
        return self._whole(path, json_of)

    def _whole(self, path: str, read: Callable[[httpx.Response], Result]) -> Result:
        try:
            return self._requests.send(path, read)
        except RequestFailed as failed:
            raise EndpointFailed(f"the endpoint {self.url} does not give {path} ({failed}): see its log") from None

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON that a request gets."""
        return self._requests.send(path, json_of, body)

    def chat(self, messages: Sequence[Mapping[str, Any]], fits: Fits | None = None, **more: Any) -> Answer:
        """The answer to turns. ``more`` are the request's fields; an answer that does not fit is asked for again."""
        return self._answer("/v1/chat/completions", {"messages": list(messages), **more}, read_chat, fits)

    def complete(self, prompt: Sequence[int] | str, fits: Fits | None = None, **more: Any) -> Answer:
        """What follows a prompt, given as token ids or as text."""
        asked = prompt if isinstance(prompt, str) else list(prompt)
        return self._answer("/v1/completions", {"prompt": asked, **more}, read_completion, fits)

    def _answer(self, path: str, body: dict[str, Any], read: Callable[[Any, str], Answer], fits: Fits | None) -> Answer:
        with self._lock:
            self._asked += 1
            name = f"{self._name}-{self._asked}"

        def usable(response: httpx.Response) -> Answer:
            answer = read(json_of(response), name)
            if fits and not fits(answer):
                raise Unusable("the answer belongs to another request")
            return answer

        whole, headers = {"model": self.model, **body}, {"X-Request-Id": name}
        if self._ids_asked_for:
            try:
                return self._requests.send(path, usable, {**whole, "return_token_ids": True}, headers)
            except RequestFailed as error:
                if "return_token_ids" not in str(error):
                    raise
                self._ids_asked_for = False  # an endpoint that is strict about fields it does not know
        return self._requests.send(path, usable, whole, headers)

    def each(self, ask: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result | RequestFailed]]:
        """``ask`` of every item, ``concurrency`` at once: (item, what it gave or why it has nothing) as they come.

        After ``stop``, or when the endpoint fails as a whole, what was being answered still comes, and no more; then the
        endpoint's error is raised.
        """
        failed: BaseException | None = None
        with ThreadPoolExecutor(self._concurrency) as pool:
            asked: dict[Future[Result], Item] = {pool.submit(self._unless_stopped, ask, item): item for item in items}
            try:
                for future in as_completed(asked):
                    error = future.exception()
                    if error is None:
                        yield asked[future], future.result()
                    elif isinstance(error, RequestFailed):
                        yield asked[future], error
                    elif not isinstance(error, _Stopped):
                        failed = failed or error
                        self.stop()
            except BaseException:  # whoever takes the answers wants no more
                self.stop()
                raise
        if failed is not None:
            raise failed

    def stop(self) -> None:
        """Nothing more begins, and who waits before a repeat waits no longer."""
        self._requests.stopping.set()

    def _unless_stopped(self, ask: Callable[[Item], Result], item: Item) -> Result:
        if self._requests.stopping.is_set():
            raise _Stopped
        return ask(item)


class _Stopped(Exception):
    pass
