"""Requests over real HTTP: as many at once as agreed, repeats that wait longer and longer, and a strict endpoint."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from kimi_adapters.engine_client import EngineClient
from kimi_adapters.engine_requests import RequestFailed, Requests, json_of

Reply = tuple[int, dict[str, str], dict[str, Any]]
ANSWER = {"choices": [{"message": {"content": "Moss."}, "finish_reason": "stop"}]}


@dataclass
class Server:
    """``reply`` gives status, headers and body of the n-th request, from 1 on; ``most`` were in flight at once."""

    reply: Callable[[int, dict[str, Any]], Reply]
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    flying: int = 0
    most: int = 0
    lock: Any = field(default_factory=threading.Lock)

    def answer(self, body: dict[str, Any]) -> Reply:
        with self.lock:
            self.bodies.append(body)
            self.flying += 1
            self.most = max(self.most, self.flying)
            number = len(self.bodies)
        try:
            return self.reply(number, body)
        finally:
            with self.lock:
                self.flying -= 1


@contextmanager
def serving(reply: Callable[[int, dict[str, Any]], Reply]) -> Iterator[Server]:
    endpoint = Server(reply)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            code, headers, found = endpoint.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            body = json.dumps(found).encode()
            self.send_response(code)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    endpoint.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def ask(client: EngineClient, number: int) -> str:
    return client.chat([{"role": "user", "content": str(number)}]).text


def test_so_many_are_in_flight_as_agreed() -> None:
    """Nobody is answered before three are there; a fourth at once would be counted."""
    together = threading.Barrier(3)

    def reply(number: int, body: dict[str, Any]) -> Reply:
        together.wait(60)
        return 200, {}, ANSWER

    with serving(reply) as server, EngineClient(server.url, "m", concurrency=3) as client:
        found = list(client.each(lambda number: ask(client, number), range(12)))
    assert server.most == 3
    assert sorted(number for number, _ in found) == list(range(12)) and {text for _, text in found} == {"Moss."}


def test_what_fails_comes_with_its_item_and_after_a_stop_nothing_begins() -> None:
    stopped = threading.Event()

    def reply(number: int, body: dict[str, Any]) -> Reply:
        if number > 3:
            stopped.wait(60)
        return (400 if body["messages"][0]["content"] == "1" else 200), {}, ANSWER

    with serving(reply) as server, EngineClient(server.url, "m", concurrency=1) as client:
        found = {}
        for number, text in client.each(lambda number: ask(client, number), range(40)):
            found[number] = text
            if number == 2:
                client.stop()
                stopped.set()
    assert found[0] == found[2] == "Moss." and isinstance(found[1], RequestFailed)
    assert len(server.bodies) <= 4  # one may have been on its way


class Waits:
    """Stands for the event that a repeat waits on: notes the seconds, and nobody waits."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def wait(self, seconds: float) -> bool:
        self.seconds.append(seconds)
        return False


def waits(reply: Callable[[int, dict[str, Any]], Reply], attempts: int, backoff: float) -> list[float]:
    """What one request waits for between its tries."""
    waited: Any = Waits()
    with serving(reply) as server:
        requests = Requests(server.url, None, 60.0, attempts, backoff, 1)
        requests.stopping = waited
        try:
            requests.send("/v1/x", json_of, {})
        except RequestFailed:
            assert len(server.bodies) == attempts
        finally:
            requests.close()
    seconds: list[float] = waited.seconds
    return seconds


def test_waits_double_give_or_take_a_half_up_to_a_minute() -> None:
    several = [waits(lambda number, body: (503, {}, {}), 9, 2.0) for _ in range(4)]
    for seconds in several:
        for expected, told in zip([2, 4, 8, 16, 32, 60, 60, 60], seconds, strict=True):
            assert 0.5 * expected <= told <= 1.5 * expected
    assert len({seconds[0] for seconds in several}) == 4, "those that failed together do not come back together"


def test_an_endpoint_that_says_when_is_not_asked_before() -> None:
    replies: list[Reply] = [(429, {"Retry-After": "40"}, {}), (503, {"Retry-After": "4000"}, {}), (429, {}, {})]
    replies += [(503, {"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}, {}), (200, {}, {})]
    seconds = waits(lambda number, body: replies[number - 1], 9, 0.5)
    assert seconds[:2] == [40.0, 60.0] and 1.0 <= seconds[2] <= 3.0 and 2.0 <= seconds[3] <= 6.0 and len(seconds) == 4


def test_a_strict_endpoint_is_asked_without_the_field_that_it_refuses_from_then_on() -> None:
    def reply(number: int, body: dict[str, Any]) -> Reply:
        if "return_token_ids" in body:
            return 400, {}, {"error": {"message": "Unrecognized request argument supplied: return_token_ids"}}
        return 200, {}, ANSWER

    with serving(reply) as server, EngineClient(server.url, "m", backoff=0.01) as client:
        assert [ask(client, number) for number in range(2)] == ["Moss.", "Moss."]
    assert ["return_token_ids" in body for body in server.bodies] == [True, False, False]


def test_another_refusal_is_not_taken_for_strictness() -> None:
    with serving(lambda number, body: (400, {}, {"error": {"message": "too long"}})) as server:
        with EngineClient(server.url, "m") as client, pytest.raises(RequestFailed, match="status 400: too long"):
            ask(client, 1)
        assert len(server.bodies) == 1
