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
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from artifacts.store import HashedFile
from benchmarks.extraction_parts import DEVICE, Ceilings, ceilings, seconds
from benchmarks.kimi_widths import (
    SKEWED,
    RoundCheckpoint,
    config,
    products,
    sample_lengths,
    scores,
    shard,
    values,
    write_checkpoint,
)
from kimi_adapters.gpu_transport import GpuTransport
from kimi_adapters.lanes import ShardTokens
from kimi_adapters.layer_stream import stream_states
from kimi_adapters.tensor_file import TensorWriter

LONG = (32768, 8192, 8192)
SYNC_BYTES = 512 << 20


class SyncedFile(HashedFile):
    """A hashed file whose pages go to the disk and out of the page cache as they come, on a thread beside."""

    _synced = 0

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._beside = ThreadPoolExecutor(1)

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """As HashedFile.write."""
        written = super().write(data)
        if self.size - self._synced >= SYNC_BYTES:
            self._file.flush()
            self._beside.submit(self._sync)
            self._synced = self.size
        return written

    def _sync(self) -> None:
        os.fdatasync(self._file.fileno())
        os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> str:
        """As HashedFile.close."""
        self._beside.shutdown()
        return super().close()


class Files:
    """The files of one pass's states; `close` gives their digests and removes them, for the disk is small."""

    def __init__(self, folder: Path, number: int, shards: Sequence[ShardTokens], names: Sequence[str], hidden: int):
        self._paths = [folder / f"states-{number}-{i}.safetensors" for i in range(len(shards))]
        self._files = [SyncedFile(path) for path in self._paths]
        sizes = [len(one.input_ids) for one in shards]
        self._writers = [
            TensorWriter(file, [(name, "BF16", (size, hidden)) for name in names])
            for file, size in zip(self._files, sizes, strict=True)
        ]
        self.digests: list[str] = []

    def sink(self, number: int, name: str, chunk: torch.Tensor) -> None:
        """What stream_states calls."""
        self._writers[number].write(name, chunk.view(torch.uint8).numpy())

    def close(self) -> None:
        """Syncs."""
        for writer, file, path in zip(self._writers, self._files, self._paths, strict=True):
            writer.close()
            self.digests.append(file.close())
            path.unlink()


def transformers_layer(top: Ceilings) -> dict[str, float]:
    """One layer of experts by transformers, bf16, 16 samples of 2,048 tokens: the better of its paths."""
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3DecoderLayer, DeepseekV3RotaryEmbedding

    text = {k: v for k, v in values()["text_config"].items() if k not in ("model_type", "quantization_config")}
    c = DeepseekV3Config(**text)
    c._attn_implementation, c._experts_implementation = "sdpa", "grouped_mm"
    torch.set_default_dtype(torch.bfloat16)
    with DEVICE:
        layer = DeepseekV3DecoderLayer(c, 1).eval()
    torch.set_default_dtype(torch.float32)
    for name, parameter in layer.named_parameters():
        parameter.data.fill_(1.0) if "norm" in name else parameter.data.normal_(0, parameter.shape[-1] ** -0.5)
    x = torch.randn(16, 2048, c.hidden_size, device=DEVICE, dtype=torch.bfloat16)
    places = torch.arange(2048, device=DEVICE)[None]
    tables = DeepseekV3RotaryEmbedding(c).to(DEVICE)(x, places)

    def forward() -> Any:
        return layer(x, position_embeddings=tables, position_ids=places, attention_mask=None, use_cache=False)

    took, tokens = seconds(forward), 16 * 2048
    operations = tokens * products(config()) + scores(config(), [2048] * 16)
    return {
        "seconds": took,
        "of_ceiling": operations / took / top.flops,
        "projected": tokens / took / 61,
        "peak_gb": torch.cuda.max_memory_allocated() / 1e9,
    }


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
    parser.add_argument("--shards", type=int, default=2)
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
        skewed = of_depth(folder, given.skewed_depth, skewed=True)
        with GpuTransport(skewed, DEVICE) as transport:
            note("skewed", extract(skewed, transport, passes[:1], folder, top))
        two = of_depth(folder, 2)
        with GpuTransport(two, DEVICE) as transport:
            note("reader_cold_gbs", reading(two, transport, True) / 1e9)
    table(found)


def table(found: dict[str, Any]) -> None:
    """The short table."""
    peer = found.get("transformers")
    print(f"a shard alone has the bytes it has in company: {found['same_bytes_alone']}")
    print(f"\nceiling {found['ceiling']['tflops']:.0f} TFLOP/s; reader alone {found['reader_warm_gbs']:.1f} GB/s warm, "
          f"{found['reader_cold_gbs']:.2f} GB/s from the disk")  # fmt: skip
    print(f"{'':22}{'of ceiling':>11}{'tok/s of 61':>13}{'peak GB':>9}{'weights':>9}{'output':>8}{'written tok/s':>15}")
    if peer:
        print(f"{'transformers, a layer':22}{peer['of_ceiling']:11.3f}{peer['projected']:13.0f}{peer['peak_gb']:9.1f}")
    for name in ("uniform", "skewed"):
        one = found[name]
        print(f"{f'ours, {name}':22}{one['of_ceiling']:11.3f}{one['projected']:13.0f}{one['peak_gb']:9.1f}"
              f"{one['waiting_for_weights']:9.3f}{one['waiting_for_output']:8.3f}{one['written_projected']:15.0f}")  # fmt: skip


if __name__ == "__main__":
    main()
