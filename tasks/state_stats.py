"""Statistics of hidden states by sample, taken from the chunks that pass by while they are written: no second reading."""

import numpy as np
import torch
from torch import Tensor

_LARGEST = float(np.finfo(np.float32).max)
_BLOCK = 64  # rows of 7,168 are 1.8 MB of float32: they stay in a core's cache


def row_norms(rows: Tensor) -> Tensor:
    """The Euclidean norm of each row of [k, H], float32 [k]; NaN exactly where a value of the row is not finite.

    A sum of squares that overflows float32 though every value is finite is taken in float64, and held to float32's largest.
    Every byte of hidden states passes here, 0.5 GB/s a device at K2.5: torch's norm of bfloat16 takes 3.6 times as long.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        squares = [np.einsum("kh,kh->k", wide, wide) for wide in map(_widened, rows.split(_BLOCK))]
        norms = torch.from_numpy(np.sqrt(np.concatenate(squares)) if squares else np.zeros(0, np.float32))
    odd = (~norms.isfinite()).nonzero().flatten()
    if len(odd):
        wide = rows[odd].double()
        exact = torch.linalg.vector_norm(wide, dim=1).clamp(max=_LARGEST).float()
        norms[odd] = torch.where(wide.isfinite().all(dim=1), exact, torch.nan)
    return norms


def _widened(rows: Tensor) -> np.ndarray:
    """F32 [k, H]. The bits of a bfloat16 are the upper ones of its float32."""
    if rows.dtype != torch.bfloat16:
        return rows.float().numpy()
    return (rows.contiguous().view(torch.int16).numpy().view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def sample_medians(norms: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The exact median of each sample's row norms, F32 [n]; NaN for a sample with a NaN among them, or without rows.

    A median, because the first token of a sample is an attention sink with a norm a hundred times the others'.
    """
    lengths = np.diff(offsets)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    rising = norms[np.lexsort((norms, owner))].astype(np.float64)
    unknown = (lengths == 0) | (np.bincount(owner, np.isnan(norms), len(lengths)) > 0)
    medians = np.full(len(lengths), np.nan, np.float32)
    known = np.flatnonzero(~unknown)
    low = offsets[known] + (lengths[known] - 1) // 2
    high = offsets[known] + lengths[known] // 2
    medians[known] = (rising[low] + rising[high]) / 2
    return medians


class StateStats:
    """The statistics of one shard. ``offsets`` I64 [n + 1] are its samples' bounds.

    Chunks of a state come in the order of its rows, one state after the other, as extraction writes them. Kept are four bytes
    a row of the state that passes, and its last row.
    """

    def __init__(self, offsets: np.ndarray) -> None:
        self._offsets = offsets
        self._rows = int(offsets[-1])
        self._norms = np.zeros(self._rows, np.float32)
        self._equal = np.zeros(self._rows, bool)
        self._done = 0
        self._last: Tensor | None = None
        self.arrays: dict[str, np.ndarray] = {}

    @property
    def not_finite(self) -> int:
        """How many samples have a value that is not finite, in any state."""
        finite = [array for name, array in self.arrays.items() if name.startswith("finite.")]
        return int((~np.logical_and.reduce(finite)).sum()) if finite else 0

    def add(self, name: str, chunk: Tensor, norms: Tensor | None = None) -> None:
        """The next rows [k, H] of the state ``name``, on the CPU; ``norms`` are their ``row_norms``, where they were taken
        already. After the last of them its arrays are in ``arrays``:
        ``norm.<name>`` F32 [n], the median row norm; ``finite.<name>`` BOOL [n]; ``same.<name>`` F32 [n], the share of rows
        that equal the row before."""
        place = slice(self._done, self._done + len(chunk))
        self._norms[place] = (row_norms(chunk) if norms is None else norms).numpy()
        self._equal[place] = self._equals_before(chunk, self._norms[place])
        self._done = place.stop
        self._last = chunk[-1].clone()  # the chunk's memory may be used again
        if self._done == self._rows:
            self._finish(name)

    def _equals_before(self, chunk: Tensor, norms: np.ndarray) -> np.ndarray:
        """BOOL [k]. Only rows whose norms are equal are compared, so that this costs nothing on states as they should be."""
        equal = np.zeros(len(norms), bool)
        alike = np.flatnonzero(norms[1:] == norms[:-1]) + 1
        if len(alike):
            equal[alike] = (chunk[alike] == chunk[alike - 1]).all(dim=1).numpy()
        equal[0] = self._last is not None and torch.equal(chunk[0], self._last)
        return equal

    def _finish(self, name: str) -> None:
        lengths = np.diff(self._offsets)
        self._equal[self._offsets[:-1][lengths > 0]] = False
        owner = np.repeat(np.arange(len(lengths)), lengths)
        medians = sample_medians(self._norms, self._offsets)
        repeated = np.bincount(owner, self._equal, len(lengths)) / np.maximum(lengths - 1, 1)
        self.arrays[f"norm.{name}"] = medians
        self.arrays[f"finite.{name}"] = ~np.isnan(medians)
        self.arrays[f"same.{name}"] = repeated.astype(np.float32)
        self._done, self._last = 0, None
