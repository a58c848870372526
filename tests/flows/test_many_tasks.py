"""A run of hundreds of tasks, and how fast the run after it starts."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.projects import TOPICS, write_corpus
from tests.served import Served, serving

pytestmark = pytest.mark.serve
SHARDS = 110


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, checkout: Path, cut_verifier: Path) -> Iterator[Served]:
    def settings_of(name: str, settings: dict[str, Any]) -> dict[str, Any]:
        small = {"corpus": {"max_length": 256, "shard_tokens": 16}, "training": {"epochs": 1, "pack_tokens": 512}}
        return {**settings, **small, "acceptance": {}, "data": {"conversations": ["many.jsonl"]}}

    with serving(tmp_path_factory.mktemp("served") / "project", checkout, cut_verifier, settings_of) as served:
        write_corpus(served.project.folder / "many.jsonl", (TOPICS * 4)[:SHARDS])
        yield served


def started(served: Served) -> float:
    """Seconds of a run that has nothing to do, from when the worker takes it to its end."""
    run = served.start("train-draft", data={"conversations": ["missing.jsonl"]})
    told = served.wait_for_state(run, "FAILED", "COMPLETED")
    assert "missing.jsonl" in told["message"], told
    states = served.ask(f"flow_run_states/?flow_run_id={run}", method="GET")
    times = {state["type"]: datetime.fromisoformat(state["timestamp"]) for state in states}
    return (times["FAILED"] - times["PENDING"]).total_seconds()


def test_after_200_tasks_the_next_run_starts_as_fast(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    started(served)  # what the first run alone reads from the disk
    first = started(served)
    run = served.start("train-draft")
    assert served.wait_for_state(run, "COMPLETED", "FAILED", seconds=900)["type"] == "COMPLETED"
    again = started(served)
    body = {"flow_runs": {"id": {"any_": [run]}}}
    tasks = served.ask("task_runs/count", body)
    with capsys.disabled():
        print(f"\na run before {tasks} tasks: {first:.1f} s, after them: {again:.1f} s")
    assert tasks >= 200 and again < 2 * first
