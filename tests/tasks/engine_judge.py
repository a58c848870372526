"""The stage that judges a draft in an engine, run in the test's own process on two prompts."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from artifacts.manifest import canonical_json, digest_bytes
from artifacts.store import Store
from running.job import Job, read_outputs
from tasks import engine_acceptance
from tasks.formats import ACCEPTANCE
from tests.engine_endpoint import FORMAT, MODEL, Endpoint

QUESTIONS = ("Tell me about owls.", "Tell me about ink.")
ROWS: list[dict[str, Any]] = [{"id": f"p{n}", "messages": [{"role": "user", "content": q}]} for n, q in enumerate(QUESTIONS)]
TOKENS, K = 9, 3
Judged = tuple[dict[str, Any], dict[str, Any]]  # facts, and what the artifact holds


@dataclass
class Judge:
    """A folder for the stage's work, and the verifier."""

    folder: Path
    verifier: Path

    def __call__(self, drafted: Endpoint, plain: Endpoint | None = None, timeout: float = 60.0, **own: Any) -> Judged:
        """Judge by endpoints with and without a draft."""
        return self.at(drafted.url, plain.url if plain else None, timeout, **own)

    def at(self, url: str, plain_url: str | None = None, timeout: float = 60.0, **own: Any) -> Judged:
        """The same at addresses."""
        knobs = {"command": None, "endpoint": {**_manners(timeout), "url": url, "plain_url": plain_url}}
        return self._run(knobs, {"plain": plain_url is not None, **own}, self.folder)

    def started(self, command: list[str], environment: dict[str, str], export: Path, **own: Any) -> Judged:
        """Judge by engines that ``command`` starts."""
        knobs = {"command": command, "environment": environment, "start_timeout": 120.0, "endpoint": _manners(60.0)}
        return self._run(knobs, {"plain": True, "arguments": ["--dtype", "float32"], **own}, export)

    def _run(self, knobs: dict[str, Any], own: dict[str, Any], export: Path) -> Judged:
        path = self.folder / "prompts.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        shape = {"k": K, "max_new_tokens": TOKENS, "temperatures": [0.7, 1.0], "concurrency": 2}
        events: list[dict[str, Any]] = []
        job = Job(
            key="k",
            label="the test's engine",
            settings={"model": MODEL, "version": "0.0", "chat_format": FORMAT, "max_repetition": 0.6, "max_loop": 256}
            | shape
            | own,
            knobs={"count": len(ROWS), **knobs},
            paths={"prompts": path, "verifier": self.verifier, "export": export},
            digests={"prompts": digest_bytes(canonical_json(ROWS))},
            scratch=self.folder,
            device="cpu",
            threads=1,
            workspace=self.folder,
            send=events.append,
        )
        engine_acceptance.compute(job)
        sealed = read_outputs(events[-1])["engine_acceptance"]
        store = Store(self.folder / "store")
        return dict(sealed.ref.facts), json.loads((store.open(store.commit(sealed).digest) / ACCEPTANCE).read_text())


def _manners(timeout: float) -> dict[str, Any]:
    return {"api_key_env": None, "concurrency": 2, "timeout": timeout, "attempts": 2, "backoff": 0.01}
