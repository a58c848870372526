"""Two drafts on the same samples, from what acceptance and comparison write. No stage reaches this: reports do."""

import json
from pathlib import Path
from typing import Any

from tasks.formats import ACCEPTANCE


def difference(ours: Path, theirs: Path) -> Any:
    """How much longer our acceptance is than a published draft's, an ``acceptance_difference.Difference``, paired by sample."""
    import numpy as np

    from kimi_adapters.acceptance_difference import paired_difference

    mine, other = (_cases(folder) for folder in (ours, theirs))
    pairs = [(*mine[place], *other[place]) for place in mine if place in other]
    return paired_difference(np.array(pairs, np.int64).reshape(-1, 4))


def _cases(folder: Path) -> dict[tuple[Any, ...], tuple[int, int]]:
    cases = json.loads((folder / ACCEPTANCE).read_text())["cases"]
    return {tuple(case.get(name) for name in ("id", "shard", "sample")): (case["tokens"], case["steps"]) for case in cases}
