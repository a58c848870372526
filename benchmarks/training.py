"""Training a draft at Kimi-K2.5's widths: the ceiling, speculators' own step, and ours from shards on disk, in one run.

    python -m benchmarks.training [--devices 2] [--tiny] [--folder DIR]

speculators' step (0.9, eager loss) has its batch on the device and nothing to load. Ours is the production loop: packs
from the shards' files through the prefetch, all of it timed, by speculators' forward and by the head over supervised
rows. `--devices` adds the loop on that many GPUs under torchrun, as many packs a step as GPUs, beside one. `--tiny` runs
the same on a CPU in a minute and measures nothing. Figures go to $OUT/training.json where OUT is set; a table comes last.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from speculators.losses import resolve_loss_config

from benchmarks.draft_widths import LAYER_IDS, TTT_STEPS, Widths, write_shards
from kimi_adapters.draft import build_draft, draft_config
from kimi_adapters.packing import PackedShards, ShardFiles
from kimi_adapters.process_group import Ranks, joined
from kimi_adapters.recipe import Recipe
from kimi_adapters.training_choices import HEAD_ROWS, SPECULATORS, choose
from kimi_adapters.training_loop import DraftTrainer

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
WARMING = 3  # steps that compile and fill caches


def ceiling() -> float:
    """Floating-point operations a second of a large bf16 product of random numbers."""
    size = 8192 if CUDA else 256
    a, b = (torch.randn(size, size, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    return 2 * size**3 / _seconds([lambda: a @ b] * 20)


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
    """A draft of these widths on the CPU."""
    words = widths.words()
    config = draft_config(recipe, widths.verifier(), LAYER_IDS, words.size, attention)
    return build_draft(config, widths.rows(), words, seed=0)


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

    def maybe_save_checkpoint(self, epoch: int | str, local_step: int = 0) -> None:
        pass


def ours(
    ranks: Ranks, widths: Widths, files: list[ShardFiles], pack: int, intermediate: int, forward: str, packs_per_step: int = 1
) -> dict[str, float]:
    """The production loop over the shards' packs, from the files; the first steps are not counted."""
    recipe = recipe_of(pack, intermediate, packs_per_step)
    data = PackedShards(files, LAYER_IDS, pack, TTT_STEPS)
    choices = choose(recipe, ranks.device) | {"forward": forward}
    model = model_of(recipe, widths, choices["attention"])
    loop = _Loop(model, recipe, data, files[0].states.parent / "checkpoints", lambda entry: None, ranks, choices)
    loop.run_training()
    counted = loop.curves[WARMING:-1]  # the last step's pack may be nearly empty
    seconds = sum(entry["seconds"] for entry in counted)
    return {
        "tokens_a_second": sum(entry["tokens_per_s"] * entry["seconds"] for entry in counted) / seconds,
        "loader_share": sum(entry["loader_wait"] for entry in counted) / seconds,
        "peak_gb": _peak(),
        "steps": len(counted),
        "loss": counted[-1]["loss"],
    }


def on_devices(given: argparse.Namespace, folder: Path) -> dict[str, float]:
    """The loop on several devices: this program again, under torchrun, over the shards of `folder`."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={given.devices}"]
    command += ["-m", "benchmarks.training", "--a-rank", str(folder), f"--devices={given.devices}"]
    command += ["--tiny"] if given.tiny else []
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
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
    parser.add_argument("--a-rank", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    widths = Widths(64, 512, 256, 4, 16) if given.tiny else Widths()
    pack, long, sizes = (128, 512, (96, 128)) if given.tiny else (4096, 32768, (12288, 18432))
    if given.a_rank:
        with joined(DEVICE) as ranks:
            found = ours(ranks, widths, files_in(given.a_rank), pack, sizes[-1], default_forward(), given.devices)
            if ranks.first:
                print(json.dumps(found))
        return
    found_all: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(dir=given.folder) as temporary:
        folder = Path(temporary)
        top = ceiling()
        short = write_shards(folder / "short", widths, 24 * pack * given.devices, given.supervised)
        lengths = [long] * 8
        one_long = write_shards(folder / "long", widths, 0, given.supervised, lengths)
        print(f"ceiling {top / 1e12:.0f} TFLOP/s", flush=True)

        def note(name: str, size: int, one: dict[str, float]) -> None:
            found_all[name] = {**one, "of_ceiling": one["tokens_a_second"] * widths.products(size) / top}
            print(f"{name}: {found_all[name]}", flush=True)
            if os.environ.get("OUT"):
                text = json.dumps({"ceiling": top, **found_all}, indent=1)
                (Path(os.environ["OUT"]) / "training.json").write_text(text)
            _clear()

        for size in sizes:
            note(f"speculators, {pack}, {size}", size, stock(widths, short, pack, size, 10))
            for forward in (SPECULATORS, HEAD_ROWS):
                note(f"ours ({forward}), {pack}, {size}", size, ours(Ranks(DEVICE), widths, short, pack, size, forward))
        for forward in (SPECULATORS, HEAD_ROWS):
            # A sample of as many tokens as a pack has one index less: one document fills it.
            note(f"ours ({forward}), {long}", sizes[0], ours(Ranks(DEVICE), widths, one_long, long, sizes[0], forward))
        if given.devices > 1:
            note(f"ours on {given.devices}", sizes[-1], on_devices(given, folder / "short"))
    table(found_all)
    if given.devices > 1:
        one = found_all[f"ours ({default_forward()}), {pack}, {sizes[-1]}"]["tokens_a_second"]
        print(f"{given.devices} devices: {found_all[f'ours on {given.devices}']['tokens_a_second'] / one:.2f} times one")


def default_forward() -> str:
    """The forward that the production loop takes on a GPU; on a CPU, where it takes another, one of those compared."""
    return choose(recipe_of(4096, 12288), DEVICE)["forward"] if CUDA else SPECULATORS


def table(found: dict[str, dict[str, float]]) -> None:
    """The short table."""
    print(f"\n{'':70}{'tok/s':>10}{'of ceiling':>12}{'peak GB':>9}{'loader':>8}")
    for name, one in found.items():
        print(
            f"{name:70}{one['tokens_a_second']:10,.0f}{one['of_ceiling']:12.3f}{one['peak_gb']:9.1f}{one['loader_share']:8.1%}"
        )


if __name__ == "__main__":
    main()
