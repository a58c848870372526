"""Hidden states at Kimi-K2.5's widths on one GPU: the ceiling, transformers, and ours with everything on, in one run.

    python -m benchmarks.extraction [--depth 61] [--on-disk 3] [--passes 2] [--folder DIR]

Layers of random weights are written to disk in the published layout (`--on-disk` layers of experts, read round and
round to act as 60) and come through the production reader; states of real sample lengths are written, hashed and
synced. transformers has one layer of experts in bf16 resident, samples of equal length, nothing to read or write.
Figures go to $OUT/extraction.json where OUT is set; a short table comes last.
"""

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.extraction_parts import DEVICE, Ceilings, ceilings
from benchmarks.extraction_peer import transformers_layer
from benchmarks.kimi_widths import (
    SKEWED,
    RoundCheckpoint,
    config,
    products,
    sample_lengths,
    scores,
    shard,
    write_checkpoint,
)
from benchmarks.state_files import Files
from kimi_adapters.gpu_transport import GpuTransport
from kimi_adapters.lanes import ShardTokens
from kimi_adapters.layer_stream import stream_states

LONG = (32768, 8192, 8192)


def shards_of_pass(number: int, count: int, tokens: int) -> list[ShardTokens]:
    """The first has a sample of 32k and two of 8k, the others none that long."""
    return [shard(sample_lengths(tokens, 10 * number + i, LONG if i == 0 else ()), 10 * number + i) for i in range(count)]


def extract(
    checkpoint: RoundCheckpoint, transport: GpuTransport, passes: Sequence[Sequence[ShardTokens]], folder: Path, top: Ceilings
) -> dict[str, Any]:
    """Passes one after another, their states written beside the next one's computing."""
    c = checkpoint.config
    ids = [k for k in (2, 30, 58) if k < c.num_layers]
    names = [*(f"layer.{k}" for k in ids), "last"]
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    waited = (transport.weights.seconds(), transport.states.seconds())
    started = time.monotonic()
    opened, marks = [], []
    for number, shards in enumerate(passes):
        files = Files(folder, number, shards, names, c.hidden_size)
        stream_states(
            shards, checkpoint, ids, files.sink, DEVICE, torch.bfloat16, torch.bfloat16, transport=transport,
            progress=lambda done, total: marks.append(time.monotonic()),
        )  # fmt: skip
        transport.then(files.close)
        opened.append(files)
    torch.cuda.synchronize()
    computed = time.monotonic() - started
    weights = transport.weights.seconds() - waited[0]
    transport.finish()
    written = time.monotonic() - started
    tokens = sum(len(one.input_ids) for shards in passes for one in shards)
    lengths = [int(n) for shards in passes for one in shards for n in one.offsets.diff()]
    k25 = config()
    operations = c.num_layers * scores(k25, lengths) + tokens * ((c.num_layers - 1) * products(k25) + products(k25, dense=True))
    return {
        "gflop_a_token": operations / tokens / c.num_layers / 1e9,
        "tokens": tokens, "layers": c.num_layers, "seconds": computed, "until_written": written,
        "tokens_a_second": tokens / computed, "projected": tokens / computed * c.num_layers / 61,
        "written_projected": tokens / written * c.num_layers / 61,
        "of_ceiling": operations / computed / top.flops, "peak_gb": torch.cuda.max_memory_allocated() / 1e9,
        "host_peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "reserved_gb": torch.cuda.max_memory_reserved() / 1e9, "waiting_for_weights": weights / computed,
        "waiting_for_output": (transport.states.seconds() - waited[1] - (written - computed)) / computed,
        "states_gb_a_second": tokens * len(names) * c.hidden_size * 2 / written / 1e9,
        "samples": len(lengths), "longest": max(lengths), "digests": [d for files in opened for d in files.digests],
    }  # fmt: skip


class _Reads:
    """A family that reads and computes nothing."""

    def load(self, checkpoint: Any, index: int) -> Any:
        from kimi_adapters.deepseek_fused import FusedDeepseek

        return FusedDeepseek(checkpoint.config, DEVICE, torch.bfloat16).load(checkpoint, index)


def reading(checkpoint: RoundCheckpoint, transport: GpuTransport, cold: bool) -> float:
    """Bytes a second through the production reader with nothing computed: from the page cache, or from the disk."""
    paths = [path for path in checkpoint.files if path.name.startswith("layer-")]
    if cold:
        for path in paths:
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    started = time.monotonic()
    for _ in transport.layers(_Reads(), None):
        pass
    torch.cuda.synchronize()
    files = [paths[0], *(paths[1 + k % (len(paths) - 1)] for k in range(checkpoint.config.num_layers - 1))]
    return sum(path.stat().st_size for path in files) / (time.monotonic() - started)


def of_depth(folder: Path, layers: int, skewed: bool = False) -> RoundCheckpoint:
    """The layers on disk as that many."""
    checkpoint = RoundCheckpoint(folder)
    checkpoint.skewed = skewed
    checkpoint.config = replace(checkpoint.config, num_layers=layers)
    return checkpoint


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=int, default=61)
    parser.add_argument("--skewed-depth", type=int, default=16)
    parser.add_argument("--on-disk", type=int, default=3)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--shards", type=int, default=3, help="of a pass")
    parser.add_argument("--tokens", type=int, default=131072, help="of a shard")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--no-peer", action="store_true")
    given = parser.parse_args()
    found: dict[str, Any] = {}

    def note(name: str, value: Any) -> None:
        found[name] = value
        print(f"[{time.monotonic() - begun:6.1f} s] {name}: {value}", flush=True)
        if os.environ.get("OUT"):
            (Path(os.environ["OUT"]) / "extraction.json").write_text(json.dumps(found, indent=1))

    begun = time.monotonic()
    with torch.no_grad(), tempfile.TemporaryDirectory(dir=given.folder) as temporary:
        folder = Path(temporary)
        top = ceilings()
        note("ceiling", {"tflops": top.flops / 1e12, "copy_tbs": top.bytes / 1e12})
        if not given.no_peer:
            note("transformers", transformers_layer(top))
            torch.cuda.empty_cache()
        size = write_checkpoint(folder, given.on_disk, SKEWED)
        note("checkpoint_gb", size / 1e9)
        passes = [shards_of_pass(i, given.shards, given.tokens) for i in range(given.passes)]
        shallow = of_depth(folder, 4)
        with GpuTransport(shallow, DEVICE) as transport:
            warm = extract(shallow, transport, passes, folder, top)
            note("warming", warm["seconds"])
            alone = extract(shallow, transport, [[passes[0][-1]]], folder, top)
            note("same_bytes_alone", alone["digests"][0] == warm["digests"][given.shards - 1])
            note("reader_warm_gbs", reading(shallow, transport, False) / 1e9)
        deep = of_depth(folder, given.depth)
        with GpuTransport(deep, DEVICE) as transport:
            note("uniform", extract(deep, transport, passes, folder, top))
        short = [[shard(sample_lengths(given.tokens, 100 + i), i) for i in range(given.shards)]]
        some = of_depth(folder, given.skewed_depth)
        with GpuTransport(some, DEVICE) as transport:
            note("uniform, none long", extract(some, transport, short, folder, top))
        skewed = of_depth(folder, given.skewed_depth, skewed=True)
        with GpuTransport(skewed, DEVICE) as transport:
            note("skewed", extract(skewed, transport, passes[:1], folder, top))
        two = of_depth(folder, 2)
        with GpuTransport(two, DEVICE) as transport:
            note("reader_cold_gbs", reading(two, transport, True) / 1e9)
    table(found)


def table(found: dict[str, Any]) -> None:
    """The short table."""
    top, warm, cold = found["ceiling"]["tflops"], found["reader_warm_gbs"], found["reader_cold_gbs"]
    print(f"\na shard alone has the bytes it has in company: {found['same_bytes_alone']}")
    print(f"ceiling {top:.0f} TFLOP/s; reader alone {warm:.1f} GB/s warm, {cold:.2f} GB/s from the disk")
    columns = {
        "of ceiling": ("of_ceiling", ".3f"), "tok/s of 61": ("projected", ".0f"), "GFLOP/tok": ("gflop_a_token", ".3f"),
        "peak GB": ("peak_gb", ".1f"), "weights": ("waiting_for_weights", ".3f"), "output": ("waiting_for_output", ".3f"),
        "written tok/s": ("written_projected", ".0f"),
    }  # fmt: skip
    print(" " * 26 + "".join(f"{name:>14}" for name in columns))
    rows = {"transformers, a layer": found.get("transformers", {})}
    rows |= {f"ours, {name}": found[name] for name in ("uniform", "uniform, none long", "skewed")}
    for name, one in rows.items():
        cells = [format(one[key], form) if key in one else "" for key, form in columns.values()]
        print(f"{name:26}" + "".join(f"{cell:>14}" for cell in cells))


if __name__ == "__main__":
    main()
