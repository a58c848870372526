"""The check of one shard: what is measured of each sample, and faults of the whole. What it leads to, the merge decides."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from errors import UserError
from kimi_adapters.head_scores import Head
from kimi_adapters.tensor_file import TensorFile
from tasks.arrays import read_arrays
from tasks.checks import SHIFTS, Evidence, Fault, chosen_samples, looks_unit
from tasks.formats import STATES, STATS, read_masks, read_tokens, state_rows
from tasks.repetition import repetition
from tasks.state_stats import row_norms, sample_medians

ROWS = 4096  # of a state that are in memory at once: 117 MB in float32 at Kimi-K2.5's width
_SAME_NORM = 1e-3  # relative; sums of another processor differ by 1e-6, a flipped exponent bit by 2
_HASH_BYTES = 16


@dataclass(frozen=True)
class ShardData:
    """One shard: ids I32 [T], offsets I64 [n + 1], mask U8 [T], what samples.jsonl says, statistics, and the states' file."""

    label: str
    ids: np.ndarray
    offsets: np.ndarray
    mask: np.ndarray
    samples: list[dict[str, Any]]
    stats: dict[str, np.ndarray]
    states: TensorFile

    @classmethod
    def read(cls, label: str, ids: Path, masks: Path, states: Path, stats: Path) -> "ShardData":
        """From the artifacts' folders. ``UserError`` where they do not belong together."""
        found = cls(label, *read_tokens(ids), *read_masks(masks), read_arrays(stats / STATS), TensorFile(states / STATES))
        tokens, count = len(found.ids), len(found.offsets) - 1
        if not tokens == len(found.mask) == found.offsets[-1] or len(found.samples) != count:
            raise UserError(f"the tokens and masks of {label} do not belong together: run the corpus again")
        if any(entry.shape[0] != tokens for entry in found.states.entries.values()):
            raise UserError(f"the states of {label} do not have {tokens} tokens: extract them again")
        expected = {f"{what}.{name}" for what in ("norm", "finite", "same") for name in found.states.entries}
        if set(found.stats) != expected or any(len(array) != count for array in found.stats.values()):
            raise UserError(f"the statistics of {label} do not fit its states: extract them again")
        return found

    @property
    def spans(self) -> list[tuple[int, int]]:
        """[start, end) of each sample."""
        return list(zip(self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True))

    def finite(self) -> np.ndarray:
        """Whether every state of a sample is finite, BOOL [n]."""
        found: np.ndarray = np.logical_and.reduce([self.stats[f"finite.{name}"] for name in self.states.entries])
        return found


@dataclass(frozen=True)
class ShardCheck:
    """``summary`` is check.json, ``arrays`` check.safetensors with a row a sample."""

    summary: dict[str, Any]
    arrays: dict[str, np.ndarray]
    faults: list[Fault]


def check_shard(data: ShardData, digest: str, head: Head, read_share: float) -> ShardCheck:
    """Check a shard whose ids have ``digest``; of the states the rows of a share of samples are read."""
    chosen = chosen_samples(digest, len(data.samples), read_share)
    stale = _differs_from_stats(data, np.flatnonzero(chosen))
    scores, evidence = _score(data, chosen & data.finite(), head)
    faults = [*evidence.faults(), *([Fault.STALE] if stale else [])]
    owner = np.repeat(np.arange(len(data.samples)), np.diff(data.offsets))
    foreign = np.bincount(owner, (data.ids < 0) | (data.ids >= head.vocab_size), len(data.samples))
    share, loop = repetition(data.ids, data.mask, data.offsets)
    tables, codes = _slices(data.samples)
    arrays = {
        **data.stats,
        "tokens": np.diff(data.offsets),
        "supervised": np.bincount(owner, data.mask > 0, len(data.samples)).astype(np.int64),
        "foreign": foreign > 0,
        "repetition": share,
        "loop": loop,
        "read": chosen,
        **scores,
        "held_out": np.array([sample["side"] == "held_out" for sample in data.samples], bool),
        "greedy": np.array([bool(sample.get("greedy")) for sample in data.samples], bool),
        "window": np.array([sample.get("window", 0) for sample in data.samples], np.int64),
        "hash": _digests(data.samples, "hash"),
        "first": _digests(data.samples, "first"),
        "slices": codes,
    }
    summary = {"ids": digest, "states": list(data.states.entries), "slices": tables, "evidence": evidence.as_dict()}
    return ShardCheck({**summary, "faults": [fault.name for fault in faults]}, arrays, faults)


def _differs_from_stats(data: ShardData, samples: Sequence[int] | np.ndarray) -> bool:
    """Whether stored rows of these samples give other norms than were taken while they were written."""
    for number in samples:
        start, stop = data.spans[number]
        for name in data.states.entries:
            norms = np.concatenate([row_norms(torch.from_numpy(rows)).numpy() for rows in _rows(data, name, start, stop)])
            now, then = sample_medians(norms, np.array([0, stop - start]))[0], data.stats[f"norm.{name}"][number]
            if not np.isclose(now, then, rtol=_SAME_NORM, atol=0, equal_nan=True):
                return True
    return False


def _rows(data: ShardData, name: str, start: int, stop: int) -> Iterator[np.ndarray]:
    for place in range(start, stop, ROWS):
        yield state_rows(data.states, name, slice(place, min(place + ROWS, stop)))
    if start == stop:
        yield np.zeros((0, 1), np.float32)


def _score(data: ShardData, chosen: np.ndarray, head: Head) -> tuple[dict[str, np.ndarray], Evidence]:
    """Score the supervised tokens of the chosen samples under the stored last states; row r predicts token r + 1."""
    count = len(data.samples)
    owner = np.repeat(np.arange(count), np.diff(data.offsets))
    predicted = np.append((data.mask[1:] > 0) & (owner[1:] == owner[:-1]) & chosen[owner[1:]], False)
    known = (data.ids >= 0) & (data.ids < head.vocab_size)
    rows = np.flatnonzero(predicted & np.append(known[1:], False))
    log_prob, agreed = np.zeros(count), np.zeros(count, np.int64)
    evidence = Evidence()
    for place in range(0, len(rows), ROWS):
        mine = rows[place : place + ROWS]
        part, log_probs, hits = _score_rows(data, owner, mine, head)
        log_prob += np.bincount(owner[mine], log_probs, count)
        agreed += np.bincount(owner[mine], hits, count).astype(np.int64)
        evidence += part
    scored = np.bincount(owner[rows], minlength=count)
    score = np.where(scored > 0, log_prob / np.maximum(scored, 1), np.nan)
    return {"score": score.round(6).astype(np.float32), "agreed": agreed, "scored": scored}, evidence


def _score_rows(data: ShardData, owner: np.ndarray, rows: np.ndarray, head: Head) -> tuple[Evidence, np.ndarray, np.ndarray]:
    """The evidence of some rows; for each the log-probability of the next token, and whether it is the likeliest."""
    states = torch.from_numpy(state_rows(data.states, "last", rows))
    targets = data.ids[rows + 1].astype(np.int64)
    found = head.score(states, torch.from_numpy(targets))
    choices = found.choices.numpy()
    beyond = np.minimum(rows + 2, len(data.ids) - 1)
    inner = (beyond == rows + 2) & (owner[beyond] == owner[rows])  # every shift stays within the sample
    back, here, ahead = (int((choices[inner] == data.ids[rows[inner] + 1 + shift]).sum()) for shift in SHIFTS)
    evidence = Evidence(
        rows=len(rows),
        compared=int(inner.sum()),
        agreed=(back, here, ahead),
        unit=looks_unit(head.gain_free_rms(states).numpy()),
        log_prob=float(found.log_probs.double().sum()),
    )
    if evidence.looks_normed:
        bare = head.score(states, torch.from_numpy(targets), normed=True)
        evidence.bare, evidence.log_prob_bare = len(rows), float(bare.log_probs.double().sum())
    return evidence, found.log_probs.double().numpy(), choices == targets


def _digests(samples: list[dict[str, Any]], name: str) -> np.ndarray:
    """A hash of each sample as U8 [n, 16]; zeros where there is none."""
    nothing = bytes(_HASH_BYTES)
    joined = b"".join(bytes.fromhex(sample.get(name) or "") or nothing for sample in samples)
    return np.frombuffer(joined, np.uint8).reshape(-1, _HASH_BYTES)


def _slices(samples: list[dict[str, Any]]) -> tuple[dict[str, list[str]], np.ndarray]:
    """The values of each slice dimension, sorted, and each sample's place among them, I64 [n, dimensions]; -1: has none."""
    found = [sample.get("slices") or {} for sample in samples]
    names = sorted({name for one in found for name in one})
    tables = {name: sorted({one[name] for one in found if name in one}) for name in names}
    codes = np.full((len(samples), len(names)), -1, np.int64)
    for column, name in enumerate(names):
        places = {value: place for place, value in enumerate(tables[name])}
        codes[:, column] = [places.get(one.get(name), -1) for one in found]
    return tables, codes
