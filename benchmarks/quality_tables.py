"""The tables of `benchmarks.draft_quality`: acceptance lengths by kind of prompt, and their ratio to the stock recipe's.

    python -m benchmarks.quality_tables FOLDER [--half 0]

FOLDER is what that benchmark's `--keep` left; with `--half` every other held-out prompt counts.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kimi_adapters.acceptance_interval import interval
from kimi_adapters.acceptance_length import Acceptance, total

STOCK, OURS = "stock", "ours"
Kept = dict[str, dict[str, Any]]  # "recipe-seed" -> its parameters, steps, and counts by "T k", kind and prompt
Results = dict[str, dict[str, list[list[Acceptance]]]]  # "T k" -> kind -> a list a seed, a result a prompt


def kept_file(folder: Path, draft: str) -> Path:
    """Of a "recipe-seed"."""
    return folder / f"{draft}.json"


def read_kept(folder: Path) -> Kept:
    """All that lies there, by recipe and seed."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*-*.json"))}


def results_of(kept: Kept, half: int | None) -> dict[str, Results]:
    """By recipe, of all prompts or of every other one."""
    places = slice(None) if half is None else slice(half, None, 2)
    results: dict[str, Results] = {}
    for one, left in kept.items():
        for setting, kinds in left["counts"].items():
            for kind, counts in kinds.items():
                made = [Acceptance(each["tokens"], each["steps"], tuple(each["accepted"])) for each in counts[places]]
                results.setdefault(one.rpartition("-")[0], {}).setdefault(setting, {}).setdefault(kind, []).append(made)
    return results


def print_all(kept: Kept, half: int | None = None) -> None:
    """Both tables, and what each recipe's draft is of size."""
    results = results_of(kept, half)
    if missing := {STOCK, OURS} - set(results):
        raise SystemExit(f"There are no counts of {' and '.join(sorted(missing))}; give the folder that --keep named.")
    print_table(results)
    print_others(results)
    sizes = {one.rpartition("-")[0]: f"{left['parameters'] / 1e6:.2f}M in {left['steps']} steps" for one, left in kept.items()}
    print("parameters but the embeddings: " + ", ".join(f"{name} {size}" for name, size in sizes.items()))


def by_prompt(seeds: Sequence[Sequence[Acceptance]]) -> list[Acceptance]:
    """What all seeds' drafts did on each prompt: seeds of one prompt are no prompts of their own."""
    return [sum(of[1:], of[0]) for of in zip(*seeds, strict=True)]


def ratio(stock: Sequence[Acceptance], ours: Sequence[Acceptance], resamples: int = 10_000) -> tuple[float, float, float]:
    """Acceptance length of ours over stock's, with its 95% interval: prompts drawn together for both (paired bootstrap)."""
    counts = np.array([(a.tokens, a.steps, b.tokens, b.steps) for a, b in zip(stock, ours, strict=True)], dtype=np.float64)
    drawn = np.random.default_rng(0).multinomial(len(counts), np.full(len(counts), 1 / len(counts)), size=resamples) @ counts
    of = (drawn[:, 2] / drawn[:, 3]) / (drawn[:, 0] / drawn[:, 1])
    whole = counts.sum(axis=0)
    low, high = np.nanquantile(of, [0.025, 0.975])
    return float((whole[2] / whole[3]) / (whole[0] / whole[1])), float(low), float(high)


def lengths(found: Mapping[str, Mapping[str, Sequence[Acceptance]]]) -> str:
    """One draft's acceptance length over all kinds, by temperature and k."""
    each = {
        setting: total([one for of in kinds.values() for one in of], _k(setting)).length for setting, kinds in found.items()
    }
    return ", ".join(f"{setting}: {length:.3f}" for setting, length in each.items())


def print_table(results: Mapping[str, Results]) -> None:
    """A row a temperature, k and kind, then all kinds; at the end the mean ratio over temperatures and k."""
    print(f"{'T':>3} {'k':>2} {'kind':10} {'stock':24} {'ours':24} {'ours / stock':24}")
    ratios = []
    for setting, kinds in results[STOCK].items():
        heat, k = setting.split()
        rows = [(kind, by_prompt(kinds[kind]), by_prompt(results[OURS][setting][kind])) for kind in kinds]
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
    seeds = [mean_ratio(results, OURS, number) for number in range(len(next(iter(results[OURS].values()))[_kind(results)]))]
    print("by seed: " + ", ".join(f"{one:.3f}" for one in seeds))


def mean_ratio(results: Mapping[str, Results], name: str, seed: int) -> float:
    """A recipe's seed over stock's, the mean over temperatures and k."""
    found = []
    for setting, kinds in results[name].items():
        mine = [one for of in kinds.values() for one in of[seed]]
        stock = [one for kind in kinds for one in results[STOCK][setting][kind][seed]]
        k = _k(setting)
        found.append(total(mine, k).length / total(stock, k).length)
    return sum(found) / len(found)


def print_others(results: Mapping[str, Results]) -> None:
    """What else was tried: the first seed's lengths by temperature and k over all kinds, each seed's mean ratio to stock's."""
    for name in [name for name in results if name not in (STOCK, OURS)]:
        first = {setting: {kind: of[0] for kind, of in kinds.items()} for setting, kinds in results[name].items()}
        seeds = range(len(next(iter(next(iter(results[name].values())).values()))))
        ratios = ", ".join(f"{mean_ratio(results, name, seed):.3f}" for seed in seeds)
        print(f"{name:28} {lengths(first)}; to stock {ratios}")


def _k(setting: str) -> int:
    return int(setting.split()[1])


def _kind(results: Mapping[str, Results]) -> str:
    return next(iter(next(iter(results[OURS].values()))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--half", type=int, choices=(0, 1), help="every other held-out prompt: one half chooses, one judges")
    given = parser.parse_args()
    print_all(read_kept(given.folder), given.half)


if __name__ == "__main__":
    main()
