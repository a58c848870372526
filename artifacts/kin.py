"""The nearest kin of a node that misses: which recorded node differs least from it, and in what. Also the rate of a stage."""

import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from artifacts.key import Parts
from artifacts.records import Record, Records

_BUDGET = 32 << 20  # bytes of a stage's newest records that are compared; a training over 5,000 shards has records of 4 MB
_NEWEST = 256  # records that every miss is compared with
_RARE = 8  # a part that so few records hold points at them, wherever they are

Pair = tuple[str, str]


@dataclass
class _Kindred:
    """Records of one stage and entry: the parts of each as a set, newest first, and who holds each rare part."""

    parts: list[frozenset[Pair]] = field(default_factory=list)
    holders: dict[Pair, list[int] | None] = field(default_factory=dict)

    def add(self, pairs: frozenset[Pair]) -> None:
        number = len(self.parts)
        self.parts.append(pairs)
        for pair in pairs:
            held = self.holders.setdefault(pair, [])
            if held is not None:
                held.append(number)
                if len(held) > _RARE:
                    self.holders[pair] = None

    def candidates(self, pairs: set[Pair]) -> list[int]:
        """Those that share a rare part (the same shard under older code), then the newest."""
        rare = {number for pair in pairs for number in self.holders.get(pair) or ()}
        return [*sorted(rare), *range(min(_NEWEST, len(self.parts)))]


class Kin:
    """The newest records of each stage over one store, read once; for the life of one walk."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._kindred: dict[str, dict[str, _Kindred]] = {}
        self._rates: dict[str, float | None] = {}
        self._passes: dict[str, list[Record]] = {}

    def explain(self, stage: str, parts: Parts) -> list[str]:
        """Names of the parts that differ from the nearest kin. ``["first run"]`` where there is none."""
        kindred = self._of(stage).get(parts.get("entry", ""))
        if kindred is None:
            return ["first run"]
        mine, nearest = set(parts.items()), None
        for number in kindred.candidates(mine):
            names = {name for name, _ in mine ^ kindred.parts[number]}
            if nearest is None or len(names) < len(nearest):
                nearest = names
            if len(nearest) == 1:
                break
        return sorted(nearest or [])

    def rate(self, stage: str) -> float | None:
        """Median tokens a second over the newest records of a stage; None where none was measured."""
        self._of(stage)
        return self._rates[stage]

    def passes(self, stage: str) -> list[Record]:
        """The newest records of a stage that measured the pass they were made in, newest first."""
        self._of(stage)
        return self._passes[stage]

    def _of(self, stage: str) -> dict[str, _Kindred]:
        if stage not in self._kindred:
            self._read(stage)
        return self._kindred[stage]

    def _read(self, stage: str) -> None:
        by_entry: dict[str, _Kindred] = defaultdict(_Kindred)
        known: dict[Pair, Pair] = {}  # equal parts of many records are one object
        rates: list[float] = []
        measured: list[Record] = []
        for record in self._newest(stage):
            by_entry[record.parts.get("entry", "")].add(frozenset(known.setdefault(p, p) for p in record.parts.items()))
            if len(rates) < _NEWEST and record.lineage.get("tokens") and record.lineage.get("seconds"):
                rates.append(record.lineage["tokens"] / record.lineage["seconds"])
            if len(measured) < _NEWEST and record.lineage.get("pass"):
                measured.append(record)
        self._kindred[stage], self._passes[stage] = dict(by_entry), measured
        self._rates[stage] = sorted(rates)[len(rates) // 2] if rates else None

    def _newest(self, stage: str) -> Iterator[Record]:
        folder = self._records.root / stage
        entries = list(os.scandir(folder)) if folder.is_dir() else []
        found = [(entry.stat(), entry.name.removesuffix(".json")) for entry in entries if entry.name.endswith(".json")]
        left = _BUDGET
        for _, size, key in sorted(((stat.st_mtime_ns, stat.st_size, key) for stat, key in found), reverse=True):
            record = self._records.get(stage, key)
            if record is not None:
                yield record
            left -= size
            if left <= 0:
                break
