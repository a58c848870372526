"""Where a node's shards lie, as training and replay read them."""

import json

from kimi_adapters.packing import ShardFiles
from running.job import Job
from tasks.formats import MASKS, QUARANTINE, SAMPLES, STATES, TOKENS


def shard_files(job: Job) -> list[ShardFiles]:
    """The files of every shard, in order."""
    folders = zip(job.inputs("ids"), job.inputs("masks"), job.inputs("states"), strict=True)
    return [ShardFiles(ids / TOKENS, masks / MASKS, masks / SAMPLES, states / STATES) for ids, masks, states in folders]


def quarantined(job: Job) -> dict[int, set[int]]:
    """Shard number -> samples that validation put aside."""
    aside = json.loads((job.input("quarantine") / QUARANTINE).read_text())
    count = len(job.inputs("ids"))
    return {i: set(aside[job.digests[f"ids.{i}"]]) for i in range(count) if job.digests[f"ids.{i}"] in aside}
