"""A draft vocabulary that was chosen elsewhere: a folder with d2t.npy and t2d.npy, as speculators' training takes it."""

from pathlib import Path
from typing import Any

import numpy as np

from artifacts.manifest import canonical_json, digest_bytes
from artifacts.stage import Input
from errors import UserError

FILES = ("d2t.npy", "t2d.npy")


def find(named: str, memo: Any) -> Input:
    """The folder by the content of its two files; ``memo`` remembers digests. ``UserError``: one of them is not there."""
    folder = Path(named).absolute()
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise UserError(f"vocabulary.mapping is {named}, which has no {' and no '.join(missing)}: correct it")
    digests = memo.digests([folder / name for name in FILES])
    return Input(digest_bytes(canonical_json(dict(zip(FILES, digests, strict=True)))), path=str(folder))


def read_ids(folder: Path, target: int, needed: list[int]) -> np.ndarray:
    """The target ids of its draft tokens, rising, I64 [size].

    ``UserError``: no such arrays, maps that contradict each other or are of another vocabulary than ``target`` tokens, or a
    ``needed`` token that is left out.
    """
    d2t, t2d = (_array(folder / name) for name in FILES)
    if d2t.ndim != 1 or d2t.dtype.kind not in "iu" or t2d.shape != (target,) or not np.isin(t2d, (0, 1)).all():
        raise UserError(
            f"{folder} has a d2t of {d2t.dtype} {list(d2t.shape)} and a t2d of {t2d.dtype} {list(t2d.shape)}, where a mapping "
            f"into {target} tokens needs integers and {target} flags: make it for this verifier"
        )
    ids = np.arange(len(d2t)) + d2t.astype(np.int64)
    if not np.array_equal(ids, np.flatnonzero(t2d)):
        raise UserError(f"{folder} has a d2t (target = i + d2t[i]) that contradicts its t2d: make the mapping again")
    lacking = np.setdiff1d(needed, ids)
    if len(lacking):
        raise UserError(
            f"{folder} leaves out {len(lacking)} special tokens that the answers hold (the first is {lacking[0]}), without "
            "which no draft could end one: make the mapping with them, or leave vocabulary.mapping empty"
        )
    return ids


def _array(path: Path) -> np.ndarray:
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        found = None
    if not isinstance(found, np.ndarray):
        raise UserError(f"{path} is no whole array of numpy: make the mapping again")
    return found
