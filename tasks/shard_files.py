"""Where a node's shards lie, as training and replay read them, and the samples that both leave out."""

import json
from collections.abc import Collection

from kimi_adapters.packing import ShardFiles
from kimi_adapters.tensor_file import TensorFile
from running.job import Job
from tasks.formats import MASKS, QUARANTINE, SAMPLES, STATES, TOKENS


def shard_files(job: Job) -> list[ShardFiles]:
    """The files of every shard, in order."""
    folders = zip(job.inputs("ids"), job.inputs("masks"), job.inputs("states"), strict=True)
    return [ShardFiles(ids / TOKENS, masks / MASKS, masks / SAMPLES, states / STATES) for ids, masks, states in folders]


def left_out(job: Job) -> dict[int, Collection[int]]:
    """Shard number -> samples that validation put aside or dropped.

    All samples of a shard whose ids stood in an earlier one: the lists name shards by their ids, so they cannot tell the two
    apart, and the second is a copy.
    """
    lists = json.loads((job.input("quarantine") / QUARANTINE).read_text())
    found: dict[int, Collection[int]] = {}
    seen = set()
    for number, folder in enumerate(job.inputs("ids")):
        digest = job.digests[f"ids.{number}"]
        if digest in seen:
            with TensorFile(folder / TOKENS) as file:
                found[number] = range(file.entry("offsets").shape[0] - 1)
        elif named := {*lists["quarantine"].get(digest, ()), *lists["drop"].get(digest, ())}:
            found[number] = named
        seen.add(digest)
    return found
