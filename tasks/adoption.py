"""What an adoption rests on: which shards are extracted again, and how far their states are from those they had."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from artifacts.stage import Input, Node, Stage
from running.job import Job
from tasks.formats import STATES, read_tokens, state_rows
from tasks.handles import Verifier

STAGE = Stage("adoption", module=__name__, libraries=("torch",), device="accelerator")
COMPARISON = "comparison.json"
_ROWS = 4096  # of a state that are in memory at once


def telling_shards(folders: Sequence[Path], count: int) -> list[int]:
    """Numbers of the shards that would show a difference first, ``count`` of them, by their token ids.

    The one with the longest sample (attention, positions) and with the shortest, then those with the most distinct tokens: a
    mixture's router sends different tokens to different experts, so they reach the most of them.
    """
    lengths = [np.diff(read_tokens(folder)[1]) for folder in folders]
    distinct = [len(np.unique(read_tokens(folder)[0])) for folder in folders]
    longest = max(range(len(folders)), key=lambda number: int(lengths[number].max(initial=0)))
    shortest = min(range(len(folders)), key=lambda number: int(lengths[number].min(initial=1 << 60)))
    varied = sorted(range(len(folders)), key=lambda number: -distinct[number])
    return sorted(list(dict.fromkeys([longest, shortest, *varied]))[:count])


def node(before: Input, after: Input, label: str, verifier: Verifier) -> Node:
    """Compares a shard's states, both artifacts of the store."""
    return Node(STAGE, label, {}, {"before": before, "after": after, "verifier": verifier.input("norm", "lm_head", "numbers")})


def compute(job: Job) -> None:
    """Output ``comparison``: relative error by state, |after - before| / |before| over the whole shard; the largest of a row;
    the share of rows whose likeliest token by the verifier's norm and head is the same."""
    import json

    from kimi_adapters.head_scores import Head
    from kimi_adapters.tensor_file import TensorFile
    from kimi_adapters.weights import Checkpoint

    head = Head(Checkpoint(job.input("verifier")), job.device)
    errors, worst, same, rows = {}, 0.0, 0, 0
    with TensorFile(job.input("before") / STATES) as old, TensorFile(job.input("after") / STATES) as new:
        for name, entry in old.entries.items():
            difference = norm = 0.0
            for start in range(0, entry.shape[0], _ROWS):
                part = slice(start, min(start + _ROWS, entry.shape[0]))
                one, other = state_rows(old, name, part), state_rows(new, name, part)
                squares = np.square(other.astype(np.float64) - one).sum(1), np.square(one.astype(np.float64)).sum(1)
                difference, norm = difference + squares[0].sum(), norm + squares[1].sum()
                worst = max(worst, float(np.sqrt(squares[0] / np.maximum(squares[1], 1e-30)).max(initial=0.0)))
                if name == "last":
                    same, rows = same + _agreeing(head, one, other), rows + len(one)
            errors[name] = float(np.sqrt(difference / max(norm, 1e-30)))
    facts: dict[str, Any] = {"relative_error": max(errors.values()), "worst_row": worst, "agreement": same / max(rows, 1)}
    writer = job.writer("comparison")
    writer.write(COMPARISON, json.dumps({**facts, "by_state": errors, "rows": rows}, indent=1).encode())
    job.finish({"comparison": writer.seal(rows=rows, **{name: round(value, 9) for name, value in facts.items()})}, tokens=rows)


def _agreeing(head: Any, one: np.ndarray, other: np.ndarray) -> int:
    import torch

    targets = torch.zeros(len(one), dtype=torch.int64)
    choices = [head.score(torch.from_numpy(rows), targets).choices for rows in (one, other)]
    return int((choices[0] == choices[1]).sum())
