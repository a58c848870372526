"""Statistics that are taken while states are written, against a plain computation over the whole."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.state_stats import StateStats, row_norms, sample_medians


def whole(rows: np.ndarray, offsets: np.ndarray) -> tuple[list[float], list[bool], list[float]]:
    """Median norm, finiteness and share of repeated rows by sample, the slow way."""
    medians, finite, same = [], [], []
    for a, b in zip(offsets[:-1], offsets[1:], strict=True):
        part = rows[a:b].astype(np.float64)
        finite.append(bool(np.isfinite(part).all()) and b > a)
        medians.append(float(np.median(np.sqrt((part**2).sum(1)))) if finite[-1] else np.nan)
        same.append(sum(bool((part[i] == part[i - 1]).all()) for i in range(1, b - a)) / max(1, b - a - 1))
    return medians, finite, same


@settings(max_examples=150, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any),
    chunk=st.integers(1, 12),
    seed=st.integers(0, 2**16),
    half=st.booleans(),
    odd=st.sampled_from([None, np.nan, np.inf]),
)
def test_chunks_give_what_the_whole_gives(lengths: list[int], chunk: int, seed: int, half: bool, odd: float | None) -> None:
    offsets = np.cumsum([0, *lengths])
    rng = np.random.default_rng(seed)
    states = {}
    stats = StateStats(offsets)
    for name in ("layer.1", "last"):
        rows = rng.integers(-1, 2, (int(offsets[-1]), 2)).astype(np.float32)
        if odd is not None:
            rows[rng.integers(len(rows)), 1] = odd
        states[name] = rows
        tensor = torch.from_numpy(rows.copy())
        tensor = tensor.bfloat16() if half else tensor
        for start in range(0, len(rows), chunk):
            passing = tensor[start : start + chunk].clone()
            stats.add(name, passing)
            passing.fill_(7)  # a GPU's transport uses the memory again
    assert list(stats.arrays) == [f"{what}.{name}" for name in states for what in ("norm", "finite", "same")]
    for name, rows in states.items():
        medians, finite, same = whole(rows, offsets)
        np.testing.assert_allclose(stats.arrays[f"norm.{name}"], np.array(medians, np.float32), rtol=1e-6)
        assert stats.arrays[f"finite.{name}"].tolist() == finite
        np.testing.assert_allclose(stats.arrays[f"same.{name}"], np.array(same, np.float32), rtol=1e-6)


def test_a_norm_that_overflows_is_not_a_value_that_is_not_finite() -> None:
    rows = torch.tensor([[3e30, 4e30], [3.0, 4.0], [np.inf, 0.0], [np.nan, 0.0], [3e38, 3e38]])
    norms = row_norms(rows).numpy()
    np.testing.assert_allclose(norms[[0, 1]], [5e30, 5])
    assert np.isnan(norms[[2, 3]]).all() and norms[4] == np.finfo(np.float32).max


def test_a_median_is_taken_of_all_rows() -> None:
    norms = np.array([100, 1, 2, 3, 7, 5], np.float32)
    assert sample_medians(norms, np.array([0, 4, 6])).tolist() == [2.5, 6.0]
