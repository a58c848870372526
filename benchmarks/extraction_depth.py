"""All of Kimi-K2.5's depth on one GPU: is memory flat, does the stream of layers stay steady, and does it end as it began.

    python -m benchmarks.extraction_depth [--layers 61] [--narrower 4] [--shards 2] [--passes 2] [--folder DIR]

Every layer has weights of its own on the disk; `--narrower 4` divides the widths by four (36 GB in 61 layers), `--narrower 1`
with `--layers 11` is full width in 110 GB. Passes follow one another as in a lease, their states written and hashed. Printed
are seconds a layer (median, worst, and the last third's median beside the first's), memory after each layer of host and device
(least and most past the first two of the second pass), and seconds of waiting for weights. `--tiny` runs it on a processor.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.kimi_widths import DEVICE, sample_lengths, shard, values, write_checkpoint
from benchmarks.state_files import Files
from kimi_adapters.lanes import ShardTokens
from kimi_adapters.layer_stream import stream_states
from kimi_adapters.reading import Reading
from kimi_adapters.transport import transport_for
from kimi_adapters.weights import Checkpoint


class Marks:
    """What is noted after each layer: the clock, the host's resident bytes and the device's reserved ones."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.host: list[int] = []
        self.device: list[int] = []

    def note(self, done: int, total: int) -> None:
        """What stream_states calls."""
        if DEVICE == "cuda":
            torch.cuda.synchronize()  # a layer's own seconds; the next one's weights are read beside it all the same
        self.times.append(time.monotonic())
        self.host.append(_resident())
        self.device.append(torch.cuda.memory_reserved() if DEVICE == "cuda" else 0)


def _resident() -> int:
    """Bytes of this process that no file backs: the mapped weights are the page cache's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def passes(folder: Path, given: argparse.Namespace) -> tuple[list[Marks], dict[str, float]]:
    """All passes; the marks of each, and what was read and waited for."""
    checkpoint = Checkpoint(folder)
    c, device, dtype = checkpoint.config, torch.device(DEVICE), torch.bfloat16
    names, marks = ["layer.1", "last"], [Marks() for _ in range(given.passes)]
    with transport_for(checkpoint, device) as transport:
        reading = Reading(clock=transport.read_clock)
        for number, mark in enumerate(marks):
            shards = [_shard(c.vocab_size, given.tokens, 10 * number + i) for i in range(given.shards)]
            files = Files(folder, number, shards, names, c.hidden_size)
            stream_states(
                shards, checkpoint, [1], files.sink, device, dtype, dtype,
                progress=mark.note, transport=transport, reading=reading,
            )  # fmt: skip
            transport.then(files.close)
        transport.finish()
        waited = transport.waited()
    read = checkpoint.layer_bytes * reading.layers / c.num_layers
    return marks, {"waiting": waited, "reading": reading.seconds, "read_gb": read / 1e9}


def _shard(vocabulary: int, tokens: int, seed: int) -> ShardTokens:
    made = shard(sample_lengths(tokens, seed), seed)
    return ShardTokens(made.input_ids % vocabulary, made.offsets)


def judged(marks: list[Marks]) -> dict[str, Any]:
    """Steadiness of the last pass's layers past the first, which is dense, and the memory of both ends."""
    last = marks[-1]
    seconds = [end - start for start, end in zip(last.times, last.times[1:], strict=False)]
    third = max(1, len(seconds) // 3)
    return {
        "median": median(seconds),
        "worst": max(seconds),
        "last_third_to_first": median(seconds[-third:]) / median(seconds[:third]),
        "host_gb": [min(last.host[1:]) / 1e9, max(last.host[1:]) / 1e9],
        "device_gb": [min(last.device[1:]) / 1e9, max(last.device[1:]) / 1e9],
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=61)
    parser.add_argument("--narrower", type=int, default=4)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=131072, help="of a shard")
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    if given.tiny:
        given.layers, given.narrower, given.tokens = 6, 32, 256
    with tempfile.TemporaryDirectory(dir=given.folder) as temporary:
        folder = Path(temporary)
        size = write_checkpoint(folder, given.layers - 1, given=values(given.layers, given.narrower))
        print(f"{size / 1e9:.2f} GB of weights in {given.layers} layers", flush=True)
        marks, found = passes(folder, given)
    result = {"layers": given.layers, "narrower": given.narrower, "weights_gb": size / 1e9} | judged(marks) | found
    print(json.dumps(result, indent=1))
    if os.environ.get("OUT"):
        name = f"extraction_depth_{given.narrower}.json"
        each = [{"times": one.times, "host": one.host, "device": one.device} for one in marks]
        (Path(os.environ["OUT"]) / name).write_text(json.dumps(result | {"marks": each}))


if __name__ == "__main__":
    main()
