"""Extraction on one and on two GPUs of a host through the flow's own leasing, at Kimi-K2.5's widths, in one run.

    python -m benchmarks.extraction_hosts [--layers 9] [--shards 16] [--folder DIR] [--states /dev/shm]

Layers of random weights are written to the disk, and token shards into a store. Then the same shards are extracted by one
device and by two, the weights in the page cache, and by two with the weights on the disk alone; `--leave GB` takes host
memory away until so much is left, so that they do not fit. Rates are of the passes, without the children's starts; storage
bytes are what the kernel counted for the children. `--tiny` runs it all in a minute on two shares of a processor.
"""

import argparse
import json
import mmap
import os
import resource
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from artifacts.records import Record, Records
from artifacts.stage import Input
from artifacts.store import Store
from artifacts.writer import ArtifactWriter
from benchmarks.kimi_widths import config, sample_lengths, shard, values, write_checkpoint
from running.devices import DevicePool
from running.execution import Execution
from running.memory import available_bytes
from running.snapshot import new_run_folder, take_snapshot
from running.walk import Decision, Walk
from tasks import hidden_states
from tasks.arrays import write_arrays
from tasks.formats import TOKENS
from tasks.handles import Shard, Verifier
from tasks.settings import Settings


def forget(folder: Path) -> None:
    """Drops a checkpoint from the page cache."""
    for path in folder.glob("*.safetensors"):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def warm(folder: Path) -> None:
    """Reads it into the page cache."""
    for path in folder.glob("*.safetensors"):
        with open(path, "rb", buffering=0) as file:
            while file.read(64 << 20):
                pass


def take_memory(leave: int) -> list[mmap.mmap]:
    """Host memory that nobody else has until `leave` bytes are left to all; it lasts as long as what is returned."""
    taken = []
    while (size := min(1 << 30, available_bytes() - leave)) > 1 << 20:
        block = mmap.mmap(-1, size)
        for start in range(0, size, 4096):
            block[start] = 1
        taken.append(block)
    return taken


def token_shards(store: Store, workspace: Path, count: int, tokens: int, vocabulary: int) -> list[Shard]:
    """Shards of samples of real lengths in the store."""
    made = []
    for number in range(count):
        given, writer = shard(sample_lengths(tokens, number), number), ArtifactWriter("token_shard", workspace)
        with writer.open(TOKENS) as file:
            ids = (given.input_ids % vocabulary).int().numpy()
            write_arrays(file, {"input_ids": ids, "offsets": given.offsets.numpy()})
        ids_input = Input.of(store.commit(writer.seal(tokens=tokens, samples=len(given.offsets) - 1)))
        made.append(Shard(f"{number + 1}/{count}", ids_input, ids_input, tokens))
    return made


def extract(folder: Path, states: Path, settings: Settings, devices: int, given: argparse.Namespace) -> dict[str, Any]:
    """All shards by so many devices of a store of its own, which is removed."""
    c = config(json.loads((folder / "config.json").read_text()))
    roles = dict.fromkeys(("embed", "layer", "numbers"), "random")
    facts = {"num_layers": c.num_layers, "hidden_size": c.hidden_size, "roles": roles}
    target = Verifier("random", facts, "", Input("", path=str(folder)), None)
    with tempfile.TemporaryDirectory(dir=states) as temporary:
        store = Store(Path(temporary) / "store")
        run_folder = new_run_folder(Path(temporary) / "state")
        walk = Walk(store, Records(store.root), take_snapshot(run_folder))
        pool = DevicePool(Path(temporary) / "state", [] if given.tiny else list(range(devices)), devices, share=False)
        with store.workspace() as workspace:
            shards = token_shards(store, workspace, given.shards, given.tokens, c.vocab_size)
            execution = Execution(walk, Path(temporary) / "state", run_folder, pool, workspace)
            decisions = walk.decide(hidden_states.nodes(settings, shards, target))
            execution.expect(decisions)
            read, began = _read_by_children(), time.monotonic()

            def done(decision: Decision) -> Record:
                record = execution.do(decision)
                print(f"  {decision.node.name} after {time.monotonic() - began:.0f} s", flush=True)
                return record

            with ThreadPoolExecutor(len(decisions)) as threads:
                records = list(threads.map(done, decisions))
            wall = time.monotonic() - began
        return rates(records) | {"wall": wall, "storage_gb": (_read_by_children() - read) / 1e9}


def _read_by_children() -> int:
    """Bytes that children which have ended had read from storage."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock * 512


def rates(records: Sequence[Record]) -> dict[str, Any]:
    """Tokens a second of all devices together, the share of their time that waited for weights, and the states' digests."""
    passes: dict[str, dict[str, dict[str, float]]] = {}
    for record in records:
        one = record.lineage["pass"]
        passes.setdefault(record.lineage["device"], {})[json.dumps(one)] = one
    computing = {d: sum(one["seconds"] for one in found.values()) for d, found in passes.items()}
    waiting = {d: sum(one["waiting"] for one in found.values()) for d, found in passes.items()}
    tokens = {d: sum(one["tokens"] for one in found.values()) for d, found in passes.items()}
    return {
        "tokens_a_second": sum(tokens[d] / (computing[d] + waiting[d]) for d in passes),
        "waiting_for_weights": sum(waiting.values()) / (sum(waiting.values()) + sum(computing.values())),
        "passes": {d: len(found) for d, found in passes.items()},
        "states": sorted(record.outputs["states"].digest for record in records),
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=9)
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=131072, help="of a shard")
    parser.add_argument("--per-pass", type=int, default=4)
    parser.add_argument("--folder", type=Path, help="where the weights go: a disk")
    parser.add_argument("--states", type=Path, help="where the states go: /dev/shm, where the disk is slow")
    parser.add_argument("--leave", type=float, help="GB of host memory that are left when the weights are read from the disk")
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    if given.tiny:
        given.layers, given.shards, given.tokens, given.per_pass = 3, 4, 256, 2
    settings = Settings.model_validate(
        {
            "hidden_states": {"layer_ids": [1], "compute_dtype": "bfloat16"},
            "running": {"shards_per_pass": given.per_pass},
        }
    )
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=given.folder) as temporary:
        folder, states = Path(temporary) / "verifier", given.states or Path(temporary)
        size = write_checkpoint(folder, given.layers - 1, given=values(given.layers, 32 if given.tiny else 1))
        print(f"{size / 1e9:.2f} GB of weights in {given.layers} layers", flush=True)
        for name, devices, cold in (("one", 1, False), ("two", 2, False), ("two, from the disk", 2, True)):
            (forget if cold else warm)(folder)
            taken = take_memory(int(given.leave * 1e9)) if cold and given.leave else []
            found[name] = extract(folder, states, settings, devices, given)
            taken.clear()
            print(f"{name}: { ({key: value for key, value in found[name].items() if key != 'states'}) }", flush=True)
            if os.environ.get("OUT"):
                (Path(os.environ["OUT"]) / "extraction_hosts.json").write_text(json.dumps(found, indent=1))
    ratio = found["two"]["tokens_a_second"] / found["one"]["tokens_a_second"]
    same = all(one["states"] == found["one"]["states"] for one in found.values())
    print(f"two devices give {ratio:.2f} of one (goal 1.95); the same states: {same}; weights {size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
