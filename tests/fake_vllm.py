"""vLLM for tests: ``python -m tests.fake_vllm serve DIRECTORY --port …`` as vLLM is called, with our own decoding inside.

A draft that we cannot read is served, too: it proposes one token again and again. $STARTS names a file of each start's
arguments and process id, a line each; $FAULT what goes wrong with every answer.
"""

import argparse
import json
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from errors import UserError
from kimi_adapters.draft_runner import DraftRunner
from kimi_adapters.published_draft import FROM_VERIFIER, read_published
from kimi_adapters.weights import Checkpoint
from tests.engine_endpoint import Endpoint, Engine, serving


class Stubborn:
    """A draft of an architecture that nobody here knows: `DraftRunner`'s part in decoding."""

    shape = SimpleNamespace(layer_ids=[1], num_layers=0, num_kv_heads=1, head_dim=1)
    device, dtype = torch.device("cpu"), torch.float32

    def feed(self, aux: Any, tokens: list[int], cache: Any, rows: torch.Tensor | None = None) -> torch.Tensor:
        cache.length += len(tokens)
        return torch.zeros(1 if rows is None else len(rows), 1)

    def propose(self, states: torch.Tensor, slots: torch.Tensor, k: int, cache: Any, choose: Any) -> torch.Tensor:
        return torch.full((len(slots), k), 28)


def draft_in(folder: Path, verifier: Path) -> Any:
    """The draft of a directory, with the verifier's tables where it comes without."""
    checkpoint = Checkpoint(verifier)
    try:
        draft = read_published(folder, checkpoint.config)
    except UserError:
        return Stubborn()
    own = dict(zip(FROM_VERIFIER, (checkpoint.embed, checkpoint.lm_head), strict=True))
    tables = {name: read(torch.float32) for name, read in own.items() if name not in draft.tensors}
    return DraftRunner(draft.config, {**draft.tensors, **tables})


def main() -> None:
    """Serve until a signal ends it."""
    with open(os.environ["STARTS"], "a") as file:
        file.write(json.dumps({"arguments": sys.argv[1:], "pid": os.getpid()}) + "\n")
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model", type=Path)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--speculative-config", type=json.loads)
    told, _ = parser.parse_known_args()
    engine, chosen = Engine(told.model), told.speculative_config
    draft = draft_in(Path(chosen["model"]), told.model) if chosen else None
    fault = os.environ.get("FAULT", "")
    endpoint = Endpoint(engine, lambda number: fault, draft=draft, k=chosen["num_speculative_tokens"] if chosen else 0)
    with serving(endpoint, told.port):
        threading.Event().wait()


if __name__ == "__main__":
    main()
