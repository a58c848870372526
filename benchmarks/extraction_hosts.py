"""Extraction on one and on several GPUs of a host through the flow's own leasing, at Kimi-K2.5's widths, in one run.

    python -m benchmarks.extraction_hosts [--devices 2] [--layers 20] [--shards 24] [--folder DIR] [--states /dev/shm]

Layers of random weights are written to the disk, and token shards into a store. Then the shards are extracted by `--devices`,
the first of them, as many passes as each of those has, by one device, the weights in the page cache, and all again by all with
the weights on the disk alone; `--leave GB` takes host memory away until so much is left, so that they do not fit. `--heavier`
makes the first shard three times as long. Rates are of a device's passes after its first; storage bytes are what the kernel
counted for the children. A layer has `--experts` of K2.5's 384: what a pass of few shards and layers reads and writes beside
its computing is then as much, or more, as with 28 shards, 61 layers and four states (2.7 kB read and 0.9 written a token and
layer; here 4.7 and 1.4, with all experts 18). `--tiny` runs it all in a minute on shares of a processor.
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
from running.launch import Order
from running.memory import available_bytes
from running.snapshot import new_run_folder, take_snapshot
from running.walk import Walk
from tasks import hidden_states
from tasks.arrays import write_arrays
from tasks.formats import TOKENS
from tasks.handles import Shard, Verifier
from tasks.settings import Settings

ONE, SEVERAL, COLD = "one", "several", "several, from the disk"


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


def token_shards(store: Store, workspace: Path, lengths: Sequence[int], vocabulary: int) -> list[Shard]:
    """Shards of so many tokens each, of samples of real lengths, in the store."""
    made = []
    for number, tokens in enumerate(lengths):
        given, writer = shard(sample_lengths(tokens, number), number), ArtifactWriter("token_shard", workspace)
        with writer.open(TOKENS) as file:
            ids = (given.input_ids % vocabulary).int().numpy()
            write_arrays(file, {"input_ids": ids, "offsets": given.offsets.numpy()})
        ids_input = Input.of(store.commit(writer.seal(tokens=tokens, samples=len(given.offsets) - 1)))
        made.append(Shard(f"{number + 1}/{len(lengths)}", ids_input, ids_input, tokens))
    return made


class _Timed(Execution):
    """Keeps what it records, and when."""

    finished: list[tuple[float, Record]]

    def _record(self, order: Order, event: dict[str, Any]) -> None:
        super()._record(order, event)
        record = self.walk.records.get(order.node.stage.name, order.key)
        assert record is not None
        self.finished.append((time.monotonic(), record))


def extract(folder: Path, states: Path, settings: Settings, devices: int, lengths: Sequence[int], tiny: bool) -> dict[str, Any]:
    """Shards of these lengths by so many devices, into a store of its own, which is removed."""
    c = config(json.loads((folder / "config.json").read_text()))
    roles = dict.fromkeys(("embed", "layer", "numbers"), "random")
    facts = {"num_layers": c.num_layers, "hidden_size": c.hidden_size, "roles": roles}
    target = Verifier("random", facts, "", Input("", path=str(folder)), None)
    with tempfile.TemporaryDirectory(dir=states) as temporary:
        store = Store(Path(temporary) / "store")
        run_folder = new_run_folder(Path(temporary) / "state")
        walk = Walk(store, Records(store.root), take_snapshot(run_folder))
        # Shared: this process made the weights on one of them and holds it still.
        pool = DevicePool(Path(temporary) / "state", [] if tiny else list(range(devices)), devices, share=True)
        with store.workspace() as workspace:
            shards = token_shards(store, workspace, lengths, c.vocab_size)
            execution = _Timed(walk, Path(temporary) / "state", run_folder, pool, workspace)
            decisions = walk.decide(hidden_states.nodes(settings, shards, target))
            execution.expect(decisions)
            read, began, execution.finished = _read_by_children(), time.monotonic(), []
            with ThreadPoolExecutor(len(decisions)) as threads:
                list(threads.map(execution.do, decisions))
            wall, finished = time.monotonic() - began, [(when - began, record) for when, record in execution.finished]
        print("  recorded after " + ", ".join(f"{when:.1f}" for when, _ in finished) + " s", flush=True)
        return rates(finished) | {"wall": wall, "storage_gb": (_read_by_children() - read) / 1e9}


def _read_by_children() -> int:
    """Bytes that children which have ended had read from storage."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock * 512


def rates(finished: Sequence[tuple[float, Record]]) -> dict[str, Any]:
    """Tokens a second of all devices together, the share of their time that waited for weights, and the states' digests.

    A device's first pass loads kernels and libraries, and is left out where it has others: `tokens_a_second` counts the
    seconds of the others, `kept` those from the end of the first to the end of the last, until their states lay in the store.
    """
    passes: dict[str, dict[str, tuple[float, dict[str, float]]]] = {}
    for when, record in finished:
        one = record.lineage["pass"]
        passes.setdefault(record.lineage["device"], {})[json.dumps(one)] = when, one
    in_order = {device: sorted(found.values(), key=lambda one: one[0]) for device, found in passes.items()}
    counted = {device: found[min(1, len(found) - 1) :] for device, found in in_order.items()}
    begun = {device: found[0][0] if len(found) > 1 else 0.0 for device, found in in_order.items()}

    def sums(device: str, *names: str) -> float:
        return sum(one[name] for _, one in counted[device] for name in names)

    waiting = sum(sums(device, "waiting") for device in passes)
    return {
        "tokens_a_second": sum(sums(device, "tokens") / sums(device, "seconds", "waiting") for device in passes),
        "kept": sum(sums(device, "tokens") / (counted[device][-1][0] - begun[device]) for device in passes),
        "waiting_for_weights": waiting / sum(sums(device, "seconds", "waiting") for device in passes),
        "passes": {device: [one for _, one in found] for device, found in in_order.items()},
        "states": sorted(record.outputs["states"].digest for _, record in finished),
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--heavier", action="store_true")
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--experts", type=int, default=96, help="of a layer; 8 compute a token's, however many there are")
    parser.add_argument("--shards", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=131072, help="of a shard")
    parser.add_argument("--per-pass", type=int, default=4)
    parser.add_argument("--folder", type=Path, help="where the weights go: a disk")
    parser.add_argument("--states", type=Path, help="where the states go: /dev/shm, where the disk is slow")
    parser.add_argument("--leave", type=float, help="GB of host memory that are left when the weights are read from the disk")
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    if given.tiny:
        given.layers, given.shards, given.tokens, given.per_pass = 3, 8, 256, 2
    settings = Settings.model_validate(
        {
            "hidden_states": {"layer_ids": [1], "compute_dtype": "bfloat16"},
            "running": {"shards_per_pass": given.per_pass},
        }
    )
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=given.folder) as temporary:
        folder, states = Path(temporary) / "verifier", given.states or Path(temporary)
        size = write_checkpoint(folder, given.layers - 1, given=values(given.layers, 32 if given.tiny else 1, given.experts))
        print(f"{size / 1e9:.2f} GB of weights in {given.layers} layers", flush=True)
        lengths = [given.tokens * (3 if given.heavier and not number else 1) for number in range(given.shards)]
        few = lengths[: len(lengths) // given.devices]
        for name, devices, some, cold in (
            (ONE, 1, few, False),
            (SEVERAL, given.devices, lengths, False),
            (COLD, given.devices, lengths, True),
        ):
            (forget if cold else warm)(folder)
            taken = take_memory(int(given.leave * 1e9)) if cold and given.leave else []
            found[name] = extract(folder, states, settings, devices, some, given.tiny)
            taken.clear()
            shown = {key: value for key, value in found[name].items() if key not in ("states", "passes")}
            print(f"{name}: {shown}", flush=True)
            if os.environ.get("OUT"):
                (Path(os.environ["OUT"]) / "extraction_hosts.json").write_text(json.dumps(found, indent=1))
    ratio, kept = (found[SEVERAL][name] / found[ONE][name] for name in ("tokens_a_second", "kept"))
    same = set(found[ONE]["states"]) <= set(found[SEVERAL]["states"]) == set(found[COLD]["states"])
    print(f"{given.devices} devices give {ratio:.2f} of one, {kept:.2f} until stored; the same states: {same}")


if __name__ == "__main__":
    main()
