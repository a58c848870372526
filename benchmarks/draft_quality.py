"""Acceptance of our recipe beside stock speculators' at equal data, steps and draft size, by real decoding.

    python -m benchmarks.draft_quality [--set FIELD=VALUE] [--also NAME:FIELD=VALUE,...] [--prompts humaneval=FILE.jsonl]

SmolLM2-135M answers prompts of several kinds; both recipes train on those answers, three seeds each; each draft decodes
held-out prompts of each kind, greedily and by speculative sampling at temperature 1, with k = 3 and 5. Printed are acceptance
lengths with 95% intervals (bootstrap over prompts, each with all its seeds) and the ratio of ours to stock; the goal is 1.10.
`--set` changes our recipe; `--also` tries another beside it: ours with those fields changed, or the stock one where NAME begins
with "stock", which is trained by speculators' own loop. What is chosen by such tries is judged by other prompts: `--keep`
keeps each draft's counts in a folder, and `python -m benchmarks.quality_tables FOLDER --half 0` tells what every other prompt
says, `--half 1` the others. `--prompts` adds a kind, as HumanEval's, from a file. `--data` keeps the answers and their states
in a folder. What lies in either folder is taken as it is, whatever else is asked for: a run that was cut goes on.

Drafts take turns in `--jobs` processes a GPU, which compile once and find it in Inductor's cache the next time. On one H200 the
answers and states of 2.5M tokens took 90 s where nothing else ran, and ten drafts at once 160 to 250 s to compile and train
1,198 steps with 8,192 draft tokens; with 32,000 none of twelve at once was done after 216 s.
`--tiny` shows on a CPU in a minute or two that it runs; its figures mean nothing.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from artifacts.disk import write_atomically
from benchmarks.quality_tables import OURS, STOCK, kept_file, lengths, print_all, read_kept

TEMPERATURES = (0.0, 1.0)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tokens", type=int, default=3_000_000, help="tokens of prompts and answers to train on")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--pack-tokens", type=int, default=4096)
    parser.add_argument("--k", type=int, nargs="+", default=[3, 5])
    parser.add_argument("--answer-tokens", type=int, default=96)
    parser.add_argument("--judged-tokens", type=int, default=48)
    parser.add_argument("--judged-prompts", type=int, default=48, help="at most so many of a kind")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=3, help="processes a device")
    parser.add_argument("--devices", type=int, default=1, help="GPUs that they are shared out to")
    parser.add_argument("--also-seeds", type=int, default=1, help="of each recipe that --also names")
    parser.add_argument("--also", action="append", default=[], metavar="NAME:FIELD=VALUE,...", help="one more recipe")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="a change to our recipe")
    parser.add_argument("--prompts", action="append", default=[], metavar="KIND=FILE", help="one more kind of held-out prompts")
    parser.add_argument("--data", type=Path, help="where the answers and states are kept, for the next run too")
    parser.add_argument("--keep", type=Path, help="a folder for what each draft counted, which benchmarks.quality_tables reads")
    parser.add_argument("--tiny", action="store_true", help="four layers on a CPU, one seed, little data")
    parser.add_argument("--these", nargs="+", metavar="RECIPE-SEED", help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.tiny:
        small = {"device": "cpu", "tokens": 600, "seeds": 1, "epochs": 1, "pack_tokens": 128, "k": [2]}
        small |= {"answer_tokens": 16, "judged_tokens": 6, "judged_prompts": 2, "jobs": 2}
        vars(given).update(small)
    return given


def make_data(given: argparse.Namespace, work: Path) -> None:
    """The verifier, the answers and their states under `work`; `data.json`, which names them, comes last."""
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
        made = prepare(work, directory, given.tokens, layers, given.device, given.answer_tokens, given.prompts)
    with open(work / "counts.safetensors", "wb") as file:
        write_tensors(file, {"counts": made.counts})
    shards = [{name: str(path) for name, path in asdict(files).items()} for files in made.shards]
    told = {"verifier": str(directory), "layers": layers, "shards": shards, "held_out": made.held_out, "tokens": made.tokens}
    (work / "data.json").write_text(json.dumps(told))


def drafts(given: argparse.Namespace) -> None:
    """In a process of its own: train drafts one after another, judge each, leave its counts in a file."""
    import torch

    from benchmarks.quality_data import FORMAT, vocabulary_of
    from benchmarks.quality_drafts import judge, recipes_of, train_draft
    from kimi_adapters.chat import stop_ids
    from kimi_adapters.draft import verifier_rows
    from kimi_adapters.packing import ShardFiles
    from kimi_adapters.tensor_file import TensorFile
    from kimi_adapters.tokenizer import Tokenizer
    from kimi_adapters.torch_file import read_tensors
    from kimi_adapters.verifier import Verifier
    from kimi_adapters.weights import Checkpoint

    if given.device == "cpu":
        torch.set_num_threads(1)
    told = json.loads((given.data / "data.json").read_text())
    checkpoint, tokenizer = Checkpoint(told["verifier"]), Tokenizer(told["verifier"])
    held_out = {kind: prompts[: given.judged_prompts] for kind, prompts in told["held_out"].items()}
    with TensorFile(given.data / "counts.safetensors") as file:
        counts = read_tensors(file)["counts"]
    shards = [ShardFiles(**{name: Path(path) for name, path in files.items()}) for files in told["shards"]]
    recipes = recipes_of(given)
    shared = {"lr": 1e-3, "epochs": given.epochs, "pack_tokens": given.pack_tokens, "max_position_embeddings": 8192}
    small = {"vocabulary": 1024, "intermediate_size": 64} if given.tiny else {}
    device = torch.device(given.device)
    longest = max(values["ttt_steps"] for values in recipes.values())
    verifier, stops = Verifier(checkpoint, device), stop_ids(tokenizer, FORMAT)
    for one in given.these:
        name, _, seed = one.rpartition("-")
        began, values = time.monotonic(), {**shared, **recipes[name], **small, "seed": int(seed)}
        vocabulary = vocabulary_of(counts, tokenizer, values.pop("vocabulary"))
        torch._dynamo.reset()  # another model's graphs count against the same limit
        trained = train_draft(
            values,
            longest,
            shards,
            told["layers"],
            checkpoint.config,
            verifier_rows(checkpoint, vocabulary),
            vocabulary,
            device,
            given.work / "checkpoints" / one,
        )
        taken = time.monotonic() - began
        by_k = {k: judge(verifier, trained.runner, held_out, TEMPERATURES, k, given.judged_tokens, stops) for k in given.k}
        found = {f"{heat:g} {k}": by_k[k][heat] for heat in TEMPERATURES for k in given.k}
        judged = time.monotonic() - began - taken
        print(f"{one}: {trained.steps} steps, trained in {taken:.0f} s, judged in {judged:.0f} s: {lengths(found)}", flush=True)
        counted = {s: {kind: [asdict(a) for a in of] for kind, of in kinds.items()} for s, kinds in found.items()}
        left = {"parameters": trained.parameters, "steps": trained.steps, "counts": counted}
        write_atomically(kept_file(given.keep or given.work, one), json.dumps(left).encode())


def run_all(given: argparse.Namespace, data: Path, work: Path) -> None:
    """Every recipe and seed that has no file yet, in processes side by side."""
    from benchmarks.quality_drafts import recipes_of

    seeds = {name: given.seeds if name in (STOCK, OURS) else given.also_seeds for name in recipes_of(given)}
    wanted = [f"{name}-{given.first_seed + i}" for name, count in seeds.items() for i in range(count)]
    wanted = [one for one in wanted if not kept_file(given.keep or work, one).exists()]
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(given.devices)))).split(",")
    living = []
    for number in range(count := min(given.jobs * given.devices, len(wanted))):
        where = {"TORCHINDUCTOR_COMPILE_THREADS": "2", "OMP_NUM_THREADS": "1"}  # many side by side
        where |= {"CUDA_VISIBLE_DEVICES": gpus[number % given.devices]} if given.device == "cuda" else {}
        command = [sys.executable, "-m", "benchmarks.draft_quality", *sys.argv[1:], "--work", str(work)]
        living.append(
            subprocess.Popen([*command, "--data", str(data), "--these", *wanted[number::count]], env=os.environ | where)
        )
    while any(process.poll() is None for process in living):
        if any(process.poll() for process in living):
            for process in living:
                process.kill()
            raise SystemExit("a process of drafts failed: its error stands above")
        time.sleep(0.2)


def main() -> None:
    given = arguments()
    if given.these:
        drafts(given)
        return
    began = time.monotonic()
    with TemporaryDirectory() as folder:
        work = Path(folder)
        data = given.data or work
        if not (data / "data.json").exists():
            data.mkdir(parents=True, exist_ok=True)
            make_data(given, data)
        tokens = json.loads((data / "data.json").read_text())["tokens"]
        print(f"{tokens:,} tokens with their states after {time.monotonic() - began:.0f} s", flush=True)
        if given.keep:
            given.keep.mkdir(parents=True, exist_ok=True)
        run_all(given, data, work)
        print_all(read_kept(given.keep or work))
    print(f"{time.monotonic() - began:.0f} s in all")


if __name__ == "__main__":
    main()
