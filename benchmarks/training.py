"""Training a draft at Kimi-K2.5's widths: the ceiling, speculators' own step, and ours from shards on disk, in one run.

    python -m benchmarks.training [--devices 2] [--only "ours, 4096*"] [--profile FILE] [--tiny] [--folder DIR]

speculators' step (0.9, eager loss) has its batch on the device and nothing to load. Ours is the production loop: packs
from the shards' files through the prefetch, all of it timed, with one pack an optimizer step and with eight. A fraction of
the ceiling counts the operations of speculators' step, ours computes fewer: `done` counts those. `--devices` adds the loop on
that many GPUs under torchrun, each with as many packs a step as one alone. The row of a replay has no fraction that means
anything. `--only` takes rows by patterns of their name;
`--profile` writes the kernels of three later steps to a file. `--tiny` runs the same on a CPU in a minute and measures nothing.
Figures go to $OUT/training.json where OUT is set; a table comes last.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from fnmatch import fnmatch
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from speculators.losses import resolve_loss_config

from benchmarks.draft_widths import LAYER_IDS, TTT_STEPS, Widths, write_shards
from benchmarks.gpu_clocks import Clocks
from kimi_adapters.draft import build_draft, draft_config, draft_config_values
from kimi_adapters.draft_runner import DraftRunner
from kimi_adapters.packing import PackedShards, Shard, ShardFiles
from kimi_adapters.process_group import Ranks, joined
from kimi_adapters.recipe import Recipe
from kimi_adapters.training_choices import choose
from kimi_adapters.training_loop import DraftTrainer
from kimi_adapters.walk import walk_sample
from tasks.curves import loader_rate, loader_share

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
PROFILED_AFTER = 20  # steps, by when the chip is as warm and as slow as it gets
WARMING = 3  # steps that compile and fill caches; ours compile again when a second number of rows is met: 8


def ceiling(seconds: float = 0.0) -> tuple[float, Clocks]:
    """Floating-point operations a second of a large bf16 product of random numbers, and the clocks meanwhile.

    The median of 20, or of those in the last half of so many `seconds`: a GPU at its limit of power lowers its clock.
    """
    size, began, times = 8192 if CUDA else 256, time.monotonic(), list[float]()
    a, b = (torch.randn(size, size, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    with Clocks() as clocks:
        while len(times) < 2 or time.monotonic() < began + seconds:
            times.append(_seconds([lambda: a @ b] * 20))
    return 2 * size**3 / (statistics.median(times[len(times) // 2 :]) if seconds else times[0]), clocks


def _seconds(steps: list[Any]) -> float:
    """Median time of a step, each ended before the next is timed; the first ones are not counted."""
    times = []
    for step in steps:
        _wait()
        began = time.monotonic()
        step()
        _wait()
        times.append(time.monotonic() - began)
    return statistics.median(times[WARMING:])


def _wait() -> None:
    if CUDA:
        torch.cuda.synchronize()


def _clear() -> None:
    torch._dynamo.reset()
    if CUDA:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _peak() -> float:
    return torch.cuda.max_memory_allocated() / 1e9 if CUDA else 0.0


def recipe_of(pack: int, intermediate: int, packs_per_step: int = 1) -> Recipe:
    """One epoch without replays."""
    return Recipe(
        epochs=1, pack_tokens=pack, packs_per_step=packs_per_step, ttt_steps=TTT_STEPS, intermediate_size=intermediate,
        replay_every_steps=0, checkpoint_every_steps=10**9,
    )  # fmt: skip


def model_of(recipe: Recipe, widths: Widths, attention: str) -> Any:
    """A draft of these widths, made where it is trained: a processor takes half a minute for its random numbers."""
    words, rows = widths.words(), widths.rows()
    config = draft_config(recipe, widths.verifier(), LAYER_IDS, words.size, attention)
    with DEVICE:
        return build_draft(config, rows, words, seed=0)


def stock(widths: Widths, files: list[ShardFiles], pack: int, intermediate: int, steps: int) -> dict[str, float]:
    """speculators' step: one resident pack, its compiled forward under autocast, eager loss, clipping, AdamW."""
    recipe = recipe_of(pack, intermediate)
    data = PackedShards(files, LAYER_IDS, pack, TTT_STEPS)
    chosen = data.packs(0)[0]
    batch = {name: value.to(DEVICE) for name, value in data.load(chosen).items()}
    model = model_of(recipe, widths, choose(recipe, DEVICE)["attention"]).to(DEVICE)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    loss_config = resolve_loss_config("kl_div", "eager")

    def step() -> None:
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
            _, loss, _ = model(**batch, ttt_steps=TTT_STEPS, ttt_step_loss_decay=1.0, loss_config=loss_config)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()

    seconds = _seconds([step] * (WARMING + steps))
    return {"tokens_a_second": sum(map(len, chosen)) / seconds, "peak_gb": _peak(), "loader_share": 0.0}


class _Loop(DraftTrainer):
    """The production loop without its files."""

    profiler: Any = None

    def maybe_save_checkpoint(self, epoch: int | str, local_step: int = 0) -> None:
        if self.profiler:
            (self.profiler.start if self.global_step == 1 else self.profiler.step)()


def ours(
    ranks: Ranks,
    widths: Widths,
    files: list[ShardFiles],
    pack: int,
    intermediate: int,
    packs_per_step: int = 1,
    profile: Path | None = None,
) -> dict[str, float]:
    """The production loop over the shards' packs, from the files; the first steps are not counted."""
    recipe = recipe_of(pack, intermediate, packs_per_step)
    data = PackedShards(files, LAYER_IDS, pack, TTT_STEPS)
    choices = choose(recipe, ranks.device)
    model = model_of(recipe, widths, choices["attention"])
    loop = _Loop(model, recipe, data, files[0].states.parent / "checkpoints", lambda entry: None, ranks, choices)
    if profile:
        schedule = torch.profiler.schedule(wait=PROFILED_AFTER, warmup=1, active=3, repeat=1)
        loop.profiler = torch.profiler.profile(schedule=schedule)
    loop.run_training()
    if profile:
        profile.write_text(
            loop.profiler.key_averages().table(sort_by="self_device_time_total", row_limit=60, max_name_column_width=110)
        )
    counted = loop.curves[min(2 * WARMING + 2, len(loop.curves) // 2) : -1]  # the last step's pack may be nearly empty
    return {
        "tokens_a_second": statistics.median(entry["tokens_per_s"] for entry in counted),
        "loader_share": loader_share(counted),
        "loader_gbs": loader_rate(counted) / 1e9,
        "peak_gb": _peak(),
        "steps": len(counted),
        "loss": counted[-1]["loss"],
    }


def cold(files: list[ShardFiles]) -> list[ShardFiles]:
    """The same, out of the page cache (but where `--folder` is memory): what their disk gives is what a step may take."""
    for one in files:
        with open(one.states, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return files


def replay(widths: Widths, files: list[ShardFiles], intermediate: int) -> dict[str, float]:
    """The walk over the first sample, as it follows a step: in float32, all of its answer's chains."""
    model = model_of(recipe_of(128, intermediate), widths, "sdpa")
    runner = DraftRunner(draft_config_values(model.config, torch.float32), model.state_dict(), DEVICE)
    shard = Shard(files[0], LAYER_IDS)
    walk_sample(runner, shard, 0, TTT_STEPS)
    _wait()
    began = time.monotonic()
    walk_sample(runner, shard, 0, TTT_STEPS)
    _wait()
    length = int(shard.offsets[1])
    return {"tokens_a_second": length / (time.monotonic() - began), "peak_gb": _peak(), "loader_share": 0.0}


def on_devices(given: argparse.Namespace, folder: Path, packs: int) -> dict[str, float]:
    """The loop on several devices: this program again, under torchrun, over the shards of `folder`."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={given.devices}"]
    command += ["-m", "benchmarks.training", "--a-rank", str(folder), f"--packs={packs}"]
    command += ["--tiny"] if given.tiny else []
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // given.devices))}  # torchrun's own is 1
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | threads)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def files_in(folder: Path) -> list[ShardFiles]:
    """The shard that `write_shards` left there."""
    return [ShardFiles(*(folder / name for name in ("tokens", "masks", "samples.jsonl", "states")))]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--supervised", type=float, default=0.7, help="share of each sample's tokens")
    parser.add_argument("--only", action="append", default=[], help="rows of the table whose name fits this pattern")
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--a-rank", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--packs", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    widths = Widths(64, 512, 256, 4, 16) if given.tiny else Widths()
    pack, long, (small, large) = (128, 512, (96, 128)) if given.tiny else (4096, 32768, (12288, 18432))
    if given.a_rank:
        with joined(DEVICE) as ranks:
            found = ours(ranks, widths, files_in(given.a_rank), pack, large, given.packs)
            if ranks.first:
                print(json.dumps(found))
        return
    with tempfile.TemporaryDirectory(dir=given.folder) as temporary:
        folder, one = Path(temporary), Ranks(DEVICE)
        top, _ = ceiling()
        lasting, at = ceiling(5.0 if CUDA else 0.1)
        print(
            f"ceiling {top / 1e12:.0f} TFLOP/s, lasting {lasting / 1e12:.0f} at {at.megahertz:.0f} MHz, {at.watts:.0f} W",
            flush=True,
        )
        f = given.supervised

        @cache
        def files(name: str) -> list[ShardFiles]:
            tokens, share = {"few": (40, f), "all": (40, 1.0), "many": (192, f), "long": (0, f)}[name]
            # A sample of as many tokens as a pack has one index less: one document fills it.
            return write_shards(folder / name, widths, tokens * pack, share, [long] * 8 if name == "long" else ())

        rows: dict[str, tuple[int, float, Callable[[], dict[str, float]]]] = {
            f"speculators, {pack}, {large}": (large, 1.0, lambda: stock(widths, files("few"), pack, large, 40)),
            f"ours, {pack}, {large}": (large, f, lambda: ours(one, widths, files("few"), pack, large, profile=given.profile)),
            f"ours, {pack}, {large}, 8 packs a step": (large, f, lambda: ours(one, widths, files("many"), pack, large, 8)),
            f"ours, {pack}, {large}, from the disk": (large, f, lambda: ours(one, widths, cold(files("few")), pack, large)),
            f"ours, {pack}, {large}, all supervised": (large, 1.0, lambda: ours(one, widths, files("all"), pack, large)),
            f"speculators, {pack}, {small}": (small, 1.0, lambda: stock(widths, files("few"), pack, small, 40)),
            f"ours, {pack}, {small}": (small, f, lambda: ours(one, widths, files("few"), pack, small)),
            f"ours, {long}, {small}": (small, f, lambda: ours(one, widths, files("long"), long, small)),
        }
        rows[f"replay, {long}, {small}"] = small, f, lambda: replay(widths, files("long"), small)
        if given.devices > 1:
            for packs in (1, 8):
                name = f"ours on {given.devices}, {pack}, {large}, {packs} packs each"
                rows[name] = large, f, partial(on_devices, given, files("many")[0].states.parent, packs * given.devices)
        found_all: dict[str, dict[str, float]] = {}
        for name, (size, share, measure) in rows.items():
            if given.only and not any(fnmatch(name, one) for one in given.only):
                continue
            with Clocks() as clocks:
                rate = (found := measure())["tokens_a_second"]
            found |= {
                "megahertz": clocks.megahertz,
                "watts": clocks.watts,
                "of_lasting": rate * widths.products(size) / lasting,
            }
            found |= {"of_ceiling": rate * widths.products(size) / top, "done": rate * widths.products(size, share) / top}
            found_all[name] = found
            print(f"{name}: {found}", flush=True)
            if os.environ.get("OUT"):
                text = json.dumps({"ceiling": top, **found_all}, indent=1)
                (Path(os.environ["OUT"]) / "training.json").write_text(text)
            _clear()
    table(found_all)


def table(found: dict[str, dict[str, float]]) -> None:
    """The short table."""
    print(f"\n{'':45}{'tok/s':>10}{'of ceiling':>12}{'done':>8}{'peak GB':>9}{'loader':>8}")
    for name, one in found.items():
        print(
            f"{name:45}{one['tokens_a_second']:10,.0f}{one['of_ceiling']:12.3f}{one['done']:8.3f}"
            f"{one['peak_gb']:9.1f}{one['loader_share']:8.2%}"
        )


if __name__ == "__main__":
    main()
