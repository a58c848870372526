"""A serving engine for tests: an OpenAI-compatible endpoint on loopback that answers with a real verifier, and fails on demand.

It speaks as vLLM does: token ids, request ids in its own, counters. With a draft it speculates, by our own decoding.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch

from kimi_adapters.acceptance_length import Acceptance
from kimi_adapters.chat import chat_format, prompt_ids, stop_ids
from kimi_adapters.draft_runner import DraftRunner
from kimi_adapters.generation import generate
from kimi_adapters.tokenizer import Tokenizer
from kimi_adapters.verifier import Verifier
from kimi_adapters.weights import Checkpoint
from tests.kimi_adapters.alone import decode

MODEL = "test/small"
FORMAT = "smollm2"


class Engine:
    """The verifier at work; equal requests are computed once."""

    def __init__(self, directory: Path) -> None:
        self.tokenizer, self.form = Tokenizer(directory), chat_format(FORMAT)
        self.stops = stop_ids(self.tokenizer, self.form)
        self.verifier = Verifier(Checkpoint(directory), device="cpu", dtype=torch.float32)
        self._lock = threading.Lock()
        self._known: dict[Any, tuple[list[int], Acceptance | None]] = {}

    def prompt(self, messages: list[dict[str, Any]]) -> list[int]:
        """The token ids of turns."""
        return prompt_ids(messages, self.tokenizer, self.form)

    def know(self, prompts: list[list[int]], most: int) -> list[list[int]]:
        """The greedy answers to prompts, computed together."""
        answers = generate(self.verifier, prompts, most, self.stops)
        self._known |= {(tuple(prompt), most, 0.0, None, 0): (ids, None) for prompt, ids in zip(prompts, answers, strict=True)}
        return answers

    def plant(self, prompt: list[int], most: int, k: int, ids: list[int], accepted: Acceptance) -> None:
        """Make ``ids`` the greedy answer to a prompt, with a draft of which so much is accepted, and without one."""
        self._known |= {(tuple(prompt), most, 0.0, None, k): (ids, accepted), (tuple(prompt), most, 0.0, None, 0): (ids, None)}

    def answer(
        self, prompt: list[int], most: int, temperature: float, seed: int, draft: DraftRunner | None = None, k: int = 0
    ) -> tuple[list[int], Acceptance | None]:
        """The answer's ids; with a draft, what was accepted."""
        asked = (tuple(prompt), most, temperature, seed if temperature else None, k if draft else 0)
        with self._lock:
            if asked not in self._known:
                if draft is None:
                    (ids,) = generate(self.verifier, [prompt], most, self.stops, temperature, seed)
                    self._known[asked] = (ids, None)
                else:
                    made = decode(self.verifier, draft, prompt, k, most, self.stops)
                    self._known[asked] = (made.output, made.acceptance)
            return self._known[asked]


@dataclass
class Endpoint:
    """A running endpoint. ``fault`` names what goes wrong with the n-th answer, from 1 on; "" is nothing.

    ``asked`` holds the bodies of the requests for answers; ``headers`` what came with the last one.
    """

    engine: Engine
    fault: Callable[[int], str] = lambda number: ""
    token_ids: bool = True
    key: str | None = None
    draft: DraftRunner | None = None
    k: int = 3
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    url: str = ""
    over: threading.Event = field(default_factory=threading.Event)
    counts: dict[str, int] = field(default_factory=lambda: {"generated": 0, "drafts": 0, "accepted": 0})
    by_position: list[int] = field(default_factory=lambda: [0] * 3)
    last: dict[str, Any] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def chat(self, body: dict[str, Any], request: str) -> dict[str, Any]:
        """What a chat completion gives."""
        engine, prompt = self.engine, self.engine.prompt(body["messages"])
        asked = (body["max_tokens"], body["temperature"], body.get("seed", 0))
        ids, accepted = engine.answer(prompt, *asked, self.draft, self.k)
        with self.lock:
            self.counts["generated"] += len(ids)
            if accepted:
                self.counts["drafts"] += accepted.steps
                self.counts["accepted"] += sum(accepted.accepted)
                self.by_position = [a + b for a, b in zip(self.by_position, accepted.accepted, strict=True)]
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": engine.tokenizer.decode(ids)},
            "finish_reason": "stop" if ids[-1] in engine.stops else "length",
        }
        found: dict[str, Any] = {"id": f"chatcmpl-{request}", "choices": [choice], "usage": {"completion_tokens": len(ids)}}
        if self.token_ids and body.get("return_token_ids"):
            found["prompt_token_ids"], choice["token_ids"] = prompt, ids
        return found

    def metrics(self) -> str:
        """The counters as vLLM names them."""
        lines = [f"vllm:generation_tokens_total {self.counts['generated']}.0"]
        if self.draft:
            lines += [
                f"vllm:spec_decode_num_drafts_total {self.counts['drafts']}.0",
                f"vllm:spec_decode_num_draft_tokens_total {self.counts['drafts'] * self.k}.0",
                f"vllm:spec_decode_num_accepted_tokens_total {self.counts['accepted']}.0",
                *(
                    f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{place}"}} {count}.0'
                    for place, count in enumerate(self.by_position)
                ),
            ]
        return "\n".join(lines) + "\n"


class _Handler(BaseHTTPRequestHandler):
    """A connection for each request (HTTP/1.0), so that a dead server has none."""

    endpoint: Endpoint

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Quiet."""

    def _send(self, code: int, content: bytes | dict[str, Any], missing: int = 0) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body) + missing))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        """Models, version, counters."""
        told: dict[str, Any] = {
            "/v1/models": {"data": [{"id": MODEL}]},
            "/version": {"version": "0.0.test"},
            "/metrics": self.endpoint.metrics().encode(),
            "/health": b"",
        }
        self._send(200, told[self.path]) if self.path in told else self._send(404, {})

    def do_POST(self) -> None:
        """An answer, or the fault that is due."""
        endpoint = self.endpoint
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with endpoint.lock:
            endpoint.asked.append(body)
            number = len(endpoint.asked)
            endpoint.headers = dict(self.headers)
        sent = self.headers.get("Authorization", "")
        if endpoint.key and sent != f"Bearer {endpoint.key}":
            return self._send(401, {"error": {"message": f"the key {sent} is wrong"}})
        fault = endpoint.fault(number)
        if fault == "killed" or endpoint.over.is_set():
            endpoint.over.set()
            self.server.shutdown()
            self.server.server_close()  # before this connection is closed: whoever tries again finds nobody
            return None
        if fault == "slow":  # it has written the answer, and counts it
            endpoint.chat(body, "")
            endpoint.over.wait(30)
            return None
        if fault == "500":
            return self._send(500, {"error": {"message": "the engine is dead"}})
        if fault == "busy":
            return self._send(429, {"error": "busy"})
        if fault == "refused":
            return self._send(400, {"error": {"message": f"too long for {sent}, 'input': {body['messages']}"}})
        if fault == "not json":
            return self._send(200, b"<html>a proxy's page</html>")
        found = endpoint.chat(body, str(self.headers.get("X-Request-Id")))
        if fault == "swapped" and endpoint.last:
            found = endpoint.last
        if fault == "other prompt" and endpoint.last:
            found = {**endpoint.last, "id": found["id"]}
        endpoint.last = found
        text = json.dumps(found).encode()
        half = len(text) // 2
        return self._send(200, text[:half], len(text) - half) if fault == "truncated" else self._send(200, text)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


@contextmanager
def serving(endpoint: Endpoint, port: int = 0) -> Iterator[Endpoint]:
    """Serve an endpoint on loopback, on a free port unless one is given."""
    server = _Server(("127.0.0.1", port), type("Handler", (_Handler,), {"endpoint": endpoint}))
    endpoint.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        endpoint.over.set()
        server.shutdown()
        server.server_close()
