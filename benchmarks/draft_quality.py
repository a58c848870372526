"""Acceptance of our recipe beside stock speculators' at equal data, steps and draft size, by real decoding.

    python -m benchmarks.draft_quality [--set FIELD=VALUE] [--also NAME:FIELD=VALUE,...] [--prompts humaneval=FILE.jsonl]

SmolLM2-135M answers prompts of several kinds; both recipes train on those answers, three seeds each; each draft decodes
held-out prompts of each kind, greedily and by speculative sampling at temperature 1, with k = 3 and 5. Printed are acceptance
lengths with 95% intervals (bootstrap over prompts) and the ratio of ours to stock; the goal is 1.10. `--set` changes our
recipe; `--also` tries another beside it with one seed: ours with those fields changed, or the stock one, where NAME begins
with "stock", which is trained by speculators' own loop.

TIME on one H200 (an estimate until it has run; a decoding step of so small a model is bound by launches, not by the chip):
    answers    1.0M tokens = 2,000 steps of 512 rows at 15 to 25 ms                                               30 to 50 s
    states     1.3M tokens in batches of 16,384                                                                   10 to 20 s
    training   3 epochs of 1.3M tokens in packs of 4,096: 950 steps of about 40 ms, compiled in 60 s,
               6 drafts side by side on one GPU                                                                  100 to 250 s
    decoding   32 prompts x 48 tokens at 1.5 a step x 12 ms, for each of 2 temperatures and 2 k: 50 s a draft,
               6 side by side (they wait for launches, 16 cores)                                                  60 to 120 s
    together   200 to 440 s of the 600 that a command has; --tokens and --jobs bring it down.
`--tiny` shows on a CPU in a minute or two that it runs; its figures mean nothing.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from kimi_adapters.acceptance_interval import interval
from kimi_adapters.acceptance_length import Acceptance, total

TEMPERATURES = (0.0, 1.0)
Results = dict[str, dict[str, list[Acceptance]]]  # "T k" -> kind -> a result a prompt and seed, in the same order for both


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="tokens of prompts and answers to train on")
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--pack-tokens", type=int, default=4096)
    parser.add_argument("--k", type=int, nargs="+", default=[3, 5])
    parser.add_argument("--answer-tokens", type=int, default=96)
    parser.add_argument("--judged-tokens", type=int, default=48)
    parser.add_argument("--judged-prompts", type=int, default=24, help="at most so many of a kind")
    parser.add_argument("--jobs", type=int, default=6, help="drafts trained and judged side by side")
    parser.add_argument("--devices", type=int, default=1, help="GPUs that they are shared out to")
    parser.add_argument("--also", action="append", default=[], metavar="NAME:FIELD=VALUE,...", help="one more recipe")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="a change to our recipe")
    parser.add_argument("--prompts", action="append", default=[], metavar="KIND=FILE", help="one more kind of held-out prompts")
    parser.add_argument("--tiny", action="store_true", help="four layers on a CPU, one seed, little data")
    parser.add_argument("--one", nargs=2, metavar=("RECIPE", "SEED"), help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.tiny:
        small = {"device": "cpu", "tokens": 600, "vocabulary": 1024, "seeds": 1, "epochs": 1, "pack_tokens": 128, "k": [2]}
        small |= {"answer_tokens": 16, "judged_tokens": 6, "judged_prompts": 1, "jobs": 2}
        vars(given).update(small)
    return given


def make_data(given: argparse.Namespace, work: Path) -> int:
    """The verifier, the answers and their states under `work`; gives the number of tokens."""
    import torch

    from benchmarks.quality_data import prepare
    from kimi_adapters.layer_ids import default_layer_ids
    from kimi_adapters.torch_file import write_tensors
    from kimi_adapters.weights import Checkpoint
    from tests.conftest import make_cut_verifier, make_whole_verifier

    directory = make_whole_verifier(work / "verifier")
    if given.tiny:
        directory = make_cut_verifier(directory, work / "cut")
    layers = [1, 2, 3] if given.tiny else default_layer_ids(Checkpoint(directory).config.num_layers)
    with torch.no_grad():
        made = prepare(
            work, directory, given.tokens, layers, given.device, given.answer_tokens, given.vocabulary, given.prompts
        )
    with open(work / "vocabulary.safetensors", "wb") as file:
        assert made.vocabulary.d2t is not None and made.vocabulary.t2d is not None
        write_tensors(file, {"d2t": made.vocabulary.d2t, "t2d": made.vocabulary.t2d})
    held_out = {kind: prompts[: given.judged_prompts] for kind, prompts in made.held_out.items()}
    shards = [{name: str(path) for name, path in asdict(files).items()} for files in made.shards]
    told = {"verifier": str(directory), "layers": layers, "shards": shards, "held_out": held_out}
    (work / "data.json").write_text(json.dumps(told))
    return made.tokens


def one_draft(given: argparse.Namespace, name: str, seed: int) -> None:
    """In a process of its own: train the draft, judge it, leave the counts in a file."""
    import torch

    from benchmarks.quality_data import FORMAT
    from benchmarks.quality_drafts import judge, recipes_of, train_draft
    from kimi_adapters.chat import stop_ids
    from kimi_adapters.draft import verifier_rows
    from kimi_adapters.draft_vocabulary import DraftVocabulary
    from kimi_adapters.packing import ShardFiles
    from kimi_adapters.tokenizer import Tokenizer
    from kimi_adapters.verifier import Verifier
    from kimi_adapters.weights import Checkpoint

    if given.device == "cpu":
        torch.set_num_threads(1)
    told = json.loads((given.work / "data.json").read_text())
    checkpoint = Checkpoint(told["verifier"])
    vocabulary = DraftVocabulary.read(given.work / "vocabulary.safetensors", checkpoint.config.vocab_size)
    shards = [ShardFiles(**{name: Path(path) for name, path in files.items()}) for files in told["shards"]]
    recipes = recipes_of(given)
    shared = {"lr": 1e-3, "epochs": given.epochs, "pack_tokens": given.pack_tokens, "seed": seed}
    shared |= {"max_position_embeddings": 8192, "intermediate_size": 64} if given.tiny else {"max_position_embeddings": 8192}
    device, began = torch.device(given.device), time.monotonic()
    rows, scratch = verifier_rows(checkpoint, vocabulary), given.work / f"{name}-{seed}"
    longest = max(values["ttt_steps"] for values in recipes.values())
    draft, steps = train_draft(
        shared | recipes[name], longest, shards, told["layers"], checkpoint.config, rows, vocabulary, device, scratch
    )
    trained = time.monotonic() - began
    verifier, stops = Verifier(checkpoint, device), stop_ids(Tokenizer(told["verifier"]), FORMAT)
    found = {
        f"{temperature:g} {k}": {
            kind: [asdict(one) for one in judge(verifier, draft, prompts, k, temperature, given.judged_tokens, stops)]
            for kind, prompts in told["held_out"].items()
        }
        for temperature in TEMPERATURES
        for k in given.k
    }
    judged = time.monotonic() - began - trained
    (given.work / f"{name}-{seed}.json").write_text(json.dumps({"found": found, "steps": steps, "s": [trained, judged]}))


def run_all(given: argparse.Namespace, work: Path) -> dict[str, Results]:
    """Every recipe and seed, so many side by side; the results by recipe."""
    from benchmarks.quality_drafts import recipes_of

    names = list(recipes_of(given))
    wanted = [(name, seed) for seed in range(given.seeds) for name in names if seed == 0 or name in ("stock", "ours")]
    waiting, living, started = list(wanted), list[tuple[Any, subprocess.Popen[bytes]]](), 0
    while waiting or living:
        while waiting and len(living) < given.jobs:
            one = waiting.pop(0)
            command = [sys.executable, "-m", "benchmarks.draft_quality", *sys.argv[1:]]
            where = {"CUDA_VISIBLE_DEVICES": str(started % given.devices)} if given.device == "cuda" else {}
            command += ["--work", str(work), "--one", one[0], str(one[1])]
            living.append((one, subprocess.Popen(command, env=os.environ | where)))
            started += 1
        time.sleep(0.2)
        for one, process in [each for each in living if each[1].poll() is not None]:
            if process.returncode:
                for _, other in living:
                    other.kill()
                raise SystemExit(f"{one[0]} with seed {one[1]} ended with code {process.returncode}")
            living.remove((one, process))
    results: dict[str, Results] = {name: {} for name in names}
    for name, seed in wanted:
        read = json.loads((work / f"{name}-{seed}.json").read_text())
        print(f"{name} {seed}: {read['steps']} steps, trained in {read['s'][0]:.0f} s, judged in {read['s'][1]:.0f} s")
        for setting, kinds in read["found"].items():
            for kind, counts in kinds.items():
                made = [Acceptance(one["tokens"], one["steps"], tuple(one["accepted"])) for one in counts]
                results[name].setdefault(setting, {}).setdefault(kind, []).extend(made)
    return results


def ratio(stock: Sequence[Acceptance], ours: Sequence[Acceptance], resamples: int = 10_000) -> tuple[float, float, float]:
    """Acceptance length of ours over stock's, with its 95% interval: prompts drawn together for both (paired bootstrap)."""
    counts = np.array([(a.tokens, a.steps, b.tokens, b.steps) for a, b in zip(stock, ours, strict=True)], dtype=np.float64)
    drawn = np.random.default_rng(0).multinomial(len(counts), np.full(len(counts), 1 / len(counts)), size=resamples) @ counts
    of = (drawn[:, 2] / drawn[:, 3]) / (drawn[:, 0] / drawn[:, 1])
    whole = counts.sum(axis=0)
    low, high = np.nanquantile(of, [0.025, 0.975])
    return float((whole[2] / whole[3]) / (whole[0] / whole[1])), float(low), float(high)


def print_table(results: dict[str, Results]) -> None:
    """A row a temperature, k and kind, then all kinds; at the end the mean ratio over temperatures and k."""
    print(f"{'T':>3} {'k':>2} {'kind':10} {'stock':24} {'ours':24} {'ours / stock':24}")
    ratios = []
    for setting, kinds in results["stock"].items():
        heat, k = setting.split()
        rows = [(kind, kinds[kind], results["ours"][setting][kind]) for kind in kinds]
        rows.append(("all", [one for _, mine, _ in rows for one in mine], [one for _, _, mine in rows for one in mine]))
        for kind, stock, ours in rows:
            cells = []
            for side in (stock, ours):
                low, high = interval(side)
                cells.append(f"{total(side, int(k)).length:.3f} ({low:.3f} to {high:.3f})")
            found = ratio(stock, ours)
            print(f"{heat:>3} {k:>2} {kind:10} {cells[0]:24} {cells[1]:24} {found[0]:.3f} ({found[1]:.3f} to {found[2]:.3f})")
        ratios.append(found[0])
    print(f"ours / stock, the mean over temperatures and k: {sum(ratios) / len(ratios):.3f} (goal 1.10)")


def print_others(results: dict[str, Results]) -> None:
    """What else was tried: its lengths by temperature and k over all kinds, and the mean ratio to stock's first seed."""
    for name in [name for name in results if name not in ("stock", "ours")]:
        cells, ratios = [], []
        for setting, kinds in results[name].items():
            mine = [one for kind in kinds for one in kinds[kind]]
            stock = [one for kind in kinds for one in results["stock"][setting][kind][: len(kinds[kind])]]
            cells.append(f"{setting}: {total(mine, int(setting.split()[1])).length:.3f}")
            ratios.append(ratio(stock, mine)[0])
        print(f"{name:28} {', '.join(cells)}; to stock {sum(ratios) / len(ratios):.3f}")


def main() -> None:
    given = arguments()
    if given.one:
        one_draft(given, given.one[0], int(given.one[1]))
        return
    began = time.monotonic()
    with TemporaryDirectory() as folder:
        work = Path(folder)
        tokens = make_data(given, work)
        print(f"{tokens:,} tokens with their states in {time.monotonic() - began:.0f} s", flush=True)
        results = run_all(given, work)
        print_table(results)
        print_others(results)
    print(f"{time.monotonic() - began:.0f} s in all")


if __name__ == "__main__":
    main()
