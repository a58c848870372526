"""A pass of its own process: `… VERIFIER PACE_FOLDER DESCRIPTOR`; prints its states' digest and what it read of the disk."""

import hashlib
import json
import sys
from pathlib import Path

import torch

from kimi_adapters.lanes import ShardTokens
from kimi_adapters.layer_stream import stream_states
from kimi_adapters.reading import Reading
from kimi_adapters.weights import Checkpoint
from running.pace import Pace


def disk_bytes() -> int:
    """What this process had read from storage, the page cache not counted."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def states_of(checkpoint: Checkpoint, reading: Reading | None) -> str:
    """The digest of some tokens' states."""
    digest = hashlib.sha256()
    tokens = ShardTokens(torch.arange(64), torch.tensor([0, 40, 64]))
    stream_states([tokens], checkpoint, [1], lambda shard, name, chunk: digest.update(chunk.numpy().data), reading=reading)
    return digest.hexdigest()


def main() -> None:
    """The command line; the weights fit no memory."""
    torch.set_num_threads(1)
    checkpoint = Checkpoint(sys.argv[1])
    pace = Pace(Path(sys.argv[2]), int(sys.argv[3]), available=lambda: 0)
    pace.begin(checkpoint.config.num_layers, checkpoint.layer_bytes)
    reading, before = Reading(pace), disk_bytes()
    states = states_of(checkpoint, reading)
    pace.leave()
    print(json.dumps({"states": states, "read": disk_bytes() - before, "layers": reading.layers}))


if __name__ == "__main__":
    main()
