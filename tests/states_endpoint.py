"""An engine that gives hidden states, for tests without vLLM: our own forward behind vLLM's routes, with faults on demand."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kimi_adapters.layer_stream import ShardTokens, stream_states
from kimi_adapters.torch_file import write_tensors
from kimi_adapters.weights import Checkpoint

MODEL, VERSION = "test/cut", "0.0.0-test"
Fault = Callable[[int], str]


@dataclass
class StatesEndpoint:
    """``fault`` names what goes wrong with the n-th request for states, from 1 on, and "" is nothing; ``prompts`` are theirs.

    Faults: ``500``, ``truncated``, ``other ids`` (in the answer), ``swapped`` (another request's file), ``short``, ``nan``,
    ``half`` (bfloat16), ``slow`` (no answer until the end), ``dies`` (from then on no connection holds). ``shift`` is added to
    the layers; ``last`` is what is done to the last state. Whoever does not send the ``key`` is refused, on every route.
    """

    verifier: Path
    folder: Path
    layer_ids: list[int]
    fault: Fault = lambda number: ""
    shift: int = 0
    last: Callable[[Tensor, "StatesEndpoint"], Tensor] = lambda state, endpoint: state
    prefix_caching: str = "False"
    key: str | None = None
    url: str = ""
    prompts: list[list[int]] = field(default_factory=list)
    dead: bool = False
    lock: Any = field(default_factory=threading.Lock)
    over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.checkpoint = Checkpoint(self.verifier)
        self.head = self.checkpoint.lm_head(torch.float32)
        self.folder.mkdir(exist_ok=True)

    @property
    def asked(self) -> int:
        """How many requests there were."""
        return len(self.prompts)

    def streams(self, ids: list[int]) -> list[Tensor]:
        """What enters each layer, then what leaves the last."""
        count = self.checkpoint.config.num_layers
        found: dict[str, list[Tensor]] = {}

        def sink(shard: int, name: str, chunk: Tensor) -> None:
            found.setdefault(name, []).append(chunk.clone())

        tokens = ShardTokens(torch.tensor(ids, dtype=torch.int32), torch.tensor([0, len(ids)]))
        stream_states([tokens], self.checkpoint, range(count), sink)
        return [torch.cat(found[name]) for name in (*(f"layer.{k}" for k in range(count)), "last")]

    def normed(self, state: Tensor) -> Tensor:
        """The final norm of a state."""
        eps = self.checkpoint.config.rms_norm_eps
        return state * torch.rsqrt(state.square().mean(-1, keepdim=True) + eps) * self.checkpoint.norm(torch.float32)

    def answer(self, body: dict[str, Any], request: str | None) -> bytes | int:
        """The body of an answer to the request of that id, or the status of what is none."""
        with self.lock:
            self.prompts.append(list(body["prompt"]))
            fault, name = self.fault(self.asked), f"cmpl-{request or self.asked}-0"  # as vLLM names it
            ids, generated = list(body["prompt"]), list[int]()
            while len(generated) < body["max_tokens"]:
                streams = self.streams([*ids, *generated])
                logits = self.normed(streams[-1][-1:]) @ self.head.T
                generated.append(int(logits.argmax()))
            kept = [*ids, *generated[:-1]] if body.get("kv_transfer_params") else ids
            self.write(name, kept, [stream[: len(kept)] for stream in streams], fault)
            self.write("foreign", ids[::-1], self.streams(ids[::-1]), "")
        self.dead |= fault == "dies"
        if fault == "slow":
            self.over.wait(60)
        if fault in ("500", "slow", "400") or self.dead:
            return 400 if fault == "400" else 500
        path = self.folder / ("foreign" if fault == "swapped" else name)
        choice = {"token_ids": generated, "text": "", "index": 0, "finish_reason": "length", "logprobs": None}
        choice["prompt_token_ids"] = ids[::-1] if fault == "other ids" else ids
        found = {"id": name, "object": "text_completion", "created": 0, "model": MODEL, "choices": [choice]}
        whole = json.dumps({**found, "kv_transfer_params": {"hidden_states_path": f"/elsewhere/{path.name}.safetensors"}})
        return whole[: len(whole) // 2].encode() if fault == "truncated" else whole.encode()

    def write(self, name: str, ids: list[int], streams: list[Tensor], fault: str) -> None:
        """A file of states as the connector leaves it."""
        chosen = [streams[k + self.shift] for k in self.layer_ids] + [self.last(streams[-1], self)]
        states = torch.stack(chosen, 1)
        if fault == "nan":
            states[len(ids) // 2, 0, 0] = torch.nan
        tensors = {"hidden_states": states[:-1] if fault == "short" else states, "token_ids": torch.tensor(ids)}
        with open(self.folder / f"{name}.safetensors", "wb") as file:
            write_tensors(file, tensors, torch.bfloat16 if fault == "half" else None)

    @contextmanager
    def served(self, port: int = 0) -> Iterator["StatesEndpoint"]:
        """Serve on loopback until the block ends, on a free port unless one is given."""
        server = _Server(("127.0.0.1", port), _handler(self))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield self
        finally:
            self.over.set()
            server.shutdown()
            server.server_close()
            thread.join()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


def _handler(endpoint: StatesEndpoint) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.refused():
                return
            metric = f'vllm:cache_config_info{{enable_prefix_caching="{endpoint.prefix_caching}"}} 1.0\n'
            found = {
                "/v1/models": json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 128}]}),
                "/health": "",
                "/version": json.dumps({"version": VERSION}),
                "/metrics": f"# TYPE vllm:cache_config_info gauge\n{metric}",
            }
            self.reply(200, found[self.path].encode())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.refused():
                return
            answer = endpoint.answer(body, self.headers.get("X-Request-Id"))
            if endpoint.dead:
                self.close_connection = True
            else:
                self.reply(*((answer, b"{}") if isinstance(answer, int) else (200, answer)))

        def refused(self) -> bool:
            sent = self.headers.get("Authorization", "")
            if endpoint.key is None or sent == f"Bearer {endpoint.key}":
                return False
            self.reply(401, json.dumps({"error": {"message": f"the key {sent} is wrong"}}).encode())
            return True

        def reply(self, code: int, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            pass

    return Handler
