"""Validation of shards: a node a shard measures what the merge (``tasks/validation_merge.py``) decides upon.

Ids, masks and the statistics that extraction took are read whole; of the states a share, since they are terabytes.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from artifacts.manifest import MANIFEST_NAME, Manifest, digest_file
from artifacts.stage import Made, Node, Stage
from errors import UserError
from running.job import Job
from tasks.formats import CHECK, CHECK_ARRAYS, CHECK_IDS
from tasks.handles import Shard, Verifier
from tasks.settings import Settings

STAGE = Stage(
    "validation",
    module=__name__,
    libraries=("torch", "numpy"),
    device="accelerator",
    gathers=True,
)


def nodes(settings: Settings, shards: list[Shard], states: list[Made], verifier: Verifier) -> list[Node]:
    """A node a shard; of the verifier it reads the final norm and the head."""
    chosen = {"read_share": settings.validation.read_share}
    head = verifier.input("norm", "lm_head", "numbers")
    found = []
    for shard, made in zip(shards, states, strict=True):
        inputs = {"ids": shard.ids, "masks": shard.masks, "verifier": head}
        inputs |= {name: made.input(name) for name in ("states", "stats")}
        found.append(Node(STAGE, shard.name, chosen, inputs, entry="compute_shards", tokens=shard.tokens))
    return found


def compute_shards(jobs: Sequence[Job]) -> None:
    """Check the shards of one lease, each by itself; the head is read once."""
    import torch

    from kimi_adapters.head_scores import Head
    from kimi_adapters.weights import Checkpoint

    if jobs[0].device == "cpu":
        torch.set_num_threads(1)  # sums in an order that the number of cores does not change
    head = Head(Checkpoint(jobs[0].input("verifier")), jobs[0].device)
    for job in jobs:
        _check(job, head)


def _check(job: Job, head: Any) -> None:
    from tasks.arrays import write_arrays
    from tasks.shard_check import ShardData, check_shard

    share = job.settings["read_share"]
    for name in ("ids", "masks", "stats", *(["states"] if share == 1 else [])):
        _verify_bytes(job.input(name))
    data = ShardData.read(job.label, *(job.input(name) for name in ("ids", "masks", "states", "stats")))
    found = check_shard(data, job.digests["ids"], head, share)
    writer = job.writer("shard_check")
    writer.write(CHECK, json.dumps(found.summary, indent=1).encode())
    with writer.open(CHECK_ARRAYS) as file:
        write_arrays(file, found.arrays)
    writer.write(CHECK_IDS, json.dumps([sample["id"] for sample in data.samples]).encode())
    sealed = writer.seal(
        samples=len(data.samples),
        tokens=len(data.ids),
        supervised=int(found.arrays["supervised"].sum()),
        read=int(found.arrays["read"].sum()),
        faults=[fault.value for fault in found.faults],
        **_means(found.arrays),
    )
    job.finish({"check": sealed}, tokens=len(data.ids))


def _means(arrays: dict[str, Any]) -> dict[str, Any]:
    """Facts about the scored tokens; none where no token was scored."""
    import numpy as np

    scored = int(arrays["scored"].sum())
    if not scored:
        return {"scored": 0}
    score = float(np.nansum(arrays["score"].astype(np.float64) * arrays["scored"])) / scored
    return {"scored": scored, "score": round(score, 4), "agreement": round(int(arrays["agreed"].sum()) / scored, 4)}


def _verify_bytes(folder: Path) -> None:
    manifest = Manifest.model_validate_json((folder / MANIFEST_NAME).read_bytes())
    for entry in manifest.files:
        if digest_file(folder / entry.path) != entry.blake3:
            raise UserError(
                f"{folder / entry.path} does not have the bytes that were written: delete its blob folder and run again"
            )
