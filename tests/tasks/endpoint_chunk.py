"""A chunk of prompts that the stage itself has answered by an endpoint, in the test's own process."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from artifacts.manifest import canonical_json, digest_bytes
from artifacts.store import Store
from running.job import Job, read_outputs
from tasks import endpoint_synthesis
from tasks.formats import CONVERSATIONS
from tests.engine_endpoint import FORMAT, MODEL, Endpoint

QUESTIONS = ("Tell me about owls.", "What is 2+2?", "Tell me about moss.", "Hi!")  # the second and the last end by themselves
ROWS: list[dict[str, Any]] = [{"id": f"p{n}", "messages": [{"role": "user", "content": q}]} for n, q in enumerate(QUESTIONS)]
TOKENS = 12


@dataclass
class Chunk:
    """One chunk's folder, and what its jobs sent."""

    folder: Path
    verifier: Path
    rows: list[dict[str, Any]] = field(default_factory=lambda: ROWS)
    events: list[dict[str, Any]] = field(default_factory=list)

    def answered(self, endpoint: Endpoint, **told: Any) -> list[dict[str, Any]]:
        """Do the chunk by the stage itself; the lines of the artifact."""
        return self.answered_at(endpoint.url, **told)

    def answered_at(self, url: str, **told: Any) -> list[dict[str, Any]]:
        """The same at an address."""
        self.folder.mkdir(exist_ok=True)
        path = self.folder / "prompts.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in self.rows))
        model = told.pop("model", MODEL)
        knobs = {"url": url, "api_key_env": None, "concurrency": 2, "timeout": 20.0, "attempts": 4, "backoff": 0.01}
        job = Job(
            key="k",
            label="the test's chunk",
            settings={"model": model, "max_new_tokens": TOKENS, "temperature": 0.0, "seed": 0, "chat_format": FORMAT},
            knobs={"start": 0, "stop": len(self.rows), "endpoint": {**knobs, "max_errors": 0.0, **told}},
            paths={"prompts": path, "tokenizer": self.verifier},
            digests={"prompts": digest_bytes(canonical_json(self.rows)), "tokenizer": "00"},
            scratch=self.folder,
            device="cpu",
            threads=1,
            workspace=self.folder,
            send=self.events.append,
        )
        endpoint_synthesis.compute([job])
        return [json.loads(line) for line in self.output(CONVERSATIONS).read_text().splitlines()]

    def output(self, name: str) -> Path:
        """A file of the artifact."""
        store, sealed = Store(self.folder / "store"), read_outputs(self.events[-1])["conversations"]
        return store.open(store.commit(sealed).digest) / name

    @property
    def facts(self) -> dict[str, Any]:
        """What the artifact says of itself."""
        return dict(read_outputs(self.events[-1])["conversations"].ref.facts)
