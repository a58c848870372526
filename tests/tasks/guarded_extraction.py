"""Extraction's stage on three shards as a child runs it, behind the guard: `… FOLDER VERIFIER DEVICE SHARDS_PER_PASS`.

Prints the digests of the states and of their statistics, a shard a line. A process of its own, for a guard stays.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from running.guard import only_declared
from running.job import Job
from tasks import hidden_states
from tests.tasks.stage_jobs import Bench, Text


def jobs(bench: Bench, device: str, size: int, events: list[Any]) -> list[Job]:
    """A job a shard."""
    random = np.random.default_rng(0)
    settings = {"layer_ids": [1, 3], "state_dtype": "bfloat16", "compute_dtype": "bfloat16"}
    made = []
    for lengths in ([300, 5, 80], [700], [1, 64, 65, 2000]):
        texts = [Text(random.integers(0, 1280, length).tolist(), [1] * length) for length in lengths]
        shard = bench.shard(texts)
        job = bench.one_job(settings, {"ids": shard.ids, "verifier": bench.verifier}, {"shards_per_pass": size}, events)
        job.device = device
        made.append(job)
    return made


def main() -> None:
    """The command line."""
    folder, verifier, device, size = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    events: list[Any] = []
    bench = Bench(folder, verifier)
    made = jobs(bench, device, size, events)
    root = Path(hidden_states.__file__).resolve().parents[1]
    declared = [bench.workspace, folder / "cache", root, *(path for job in made for path in job.paths.values())]
    only_declared(declared, [folder / "store"])
    hidden_states.compute_passes(made)
    outputs = {event["key"]: event["outputs"] for event in events if event["event"] == "outputs"}
    for job in made:
        print(json.dumps({name: one["ref"]["digest"] for name, one in outputs[job.key].items()}))


if __name__ == "__main__":
    main()
