"""All shards' checks side by side: a row a sample, in shard order. About 160 bytes a sample: a million take 160 MB."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from errors import UserError
from tasks.arrays import read_arrays
from tasks.checks import Evidence, Fault
from tasks.formats import CHECK, CHECK_ARRAYS, CHECK_IDS


@dataclass(frozen=True)
class CheckedCorpus:
    """``arrays`` are those of ``tasks/shard_check.py``, over all shards; ``slices`` there points into ``tables``.

    ``digests`` names the ids of each shard, ``shard`` and ``number`` place a sample: I64 [n]. ``copy`` marks the samples of
    a shard whose ids stood in an earlier one, BOOL [n].
    """

    folders: Sequence[Path]
    digests: list[str]
    states: list[str]
    tables: dict[str, list[str]]
    arrays: dict[str, np.ndarray]
    shard: np.ndarray
    number: np.ndarray
    copy: np.ndarray
    evidence: Evidence
    faults: list[Fault]

    @classmethod
    def read(cls, folders: Sequence[Path]) -> "CheckedCorpus":
        """From the folders of the checks, in shard order. ``UserError`` where the shards' states have different layers."""
        summaries = [json.loads((folder / CHECK).read_text()) for folder in folders]
        parts = [read_arrays(folder / CHECK_ARRAYS) for folder in folders]
        digests = [summary["ids"] for summary in summaries]
        states = summaries[0]["states"]
        if any(summary["states"] != states for summary in summaries):
            raise UserError("the shards' states are not of the same layers: run the flow again from hidden_states on")
        tables = _joined_tables([summary["slices"] for summary in summaries])
        codes = [_recoded(part["slices"], summary["slices"], tables) for part, summary in zip(parts, summaries, strict=True)]
        arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0] if name != "slices"}
        counts = [len(part["tokens"]) for part in parts]
        first_places = {digest: place for place, digest in reversed(list(enumerate(digests)))}
        copies = [first_places[digest] < place for place, digest in enumerate(digests)]
        return cls(
            folders=folders,
            digests=digests,
            states=states,
            tables=tables,
            arrays={**arrays, "slices": np.concatenate(codes)},
            shard=np.repeat(np.arange(len(parts)), counts),
            number=np.concatenate([np.arange(count) for count in counts]),
            copy=np.repeat(copies, counts),
            evidence=sum((Evidence.of(summary["evidence"]) for summary in summaries), Evidence()),
            faults=sorted({Fault[name] for summary in summaries for name in summary["faults"]}),
        )

    def __len__(self) -> int:
        return len(self.shard)

    @cached_property
    def finite(self) -> np.ndarray:
        """Whether every state of a sample is finite, BOOL [n]."""
        found: np.ndarray = np.logical_and.reduce([self.arrays[f"finite.{name}"] for name in self.states])
        return found

    def by_shard(self, chosen: np.ndarray) -> dict[str, list[int]]:
        """The numbers of the ``chosen`` samples (BOOL [n]) of each shard that has some, by the digest of its ids."""
        found: dict[str, list[int]] = {}
        for place in np.flatnonzero(chosen):
            found.setdefault(self.digests[self.shard[place]], []).append(int(self.number[place]))
        return found

    def ids_of(self, shard: int) -> list[str]:
        """The samples' own ids of one shard, read when they are asked for."""
        ids: list[str] = json.loads((self.folders[shard] / CHECK_IDS).read_text())
        return ids

    def means(self, chosen: np.ndarray) -> dict[str, Any]:
        """``scored`` tokens of the chosen samples, their mean log-probability and agreement; None where there are none."""
        scored = self.arrays["scored"][chosen]
        total = int(scored.sum())
        if not total:
            return {"scored": 0, "score": None, "agreement": None}
        score = float(np.nansum(self.arrays["score"][chosen].astype(np.float64) * scored)) / total
        agreement = int(self.arrays["agreed"][chosen].sum()) / total
        return {"scored": total, "score": round(score, 4), "agreement": round(agreement, 4)}


def _joined_tables(tables: Sequence[dict[str, list[str]]]) -> dict[str, list[str]]:
    names = sorted({name for table in tables for name in table})
    return {name: sorted({value for table in tables for value in table.get(name, [])}) for name in names}


def _recoded(codes: np.ndarray, mine: dict[str, list[str]], joined: dict[str, list[str]]) -> np.ndarray:
    """A shard's slice codes as places in the joined tables; -1 where a sample has no such slice."""
    found = np.full((len(codes), len(joined)), -1, np.int32)
    for column, name in enumerate(joined):
        if name in mine:
            places = {value: place for place, value in enumerate(joined[name])}
            table = np.array([places[value] for value in mine[name]] + [-1], np.int32)
            found[:, column] = table[codes[:, list(mine).index(name)]]
    return found
