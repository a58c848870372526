"""What is checked of a shard as a whole: which samples' states are read again, and faults that spoil all of it."""

import hashlib
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import numpy as np

SHIFTS = (-1, 0, 1)
_CLEAR = 4.0  # standard errors: even were a shift no worse than none, 5,000 shards would give 0.3 false alarms
_LEAST_AGREEMENT = 0.15  # of the better shift: models that agree with neither prove nothing
_UNIT = 0.02  # bfloat16 moves the root mean square of 576 numbers by less than 0.001
_NEARLY_ALL = 0.95


class Fault(StrEnum):
    """What is wrong with a whole shard: its samples cannot be put aside one by one, it must be made again."""

    NORMED = "its last state has already been through the final norm"
    LATE = "its ids are off by one: each state stands one row after its token"
    EARLY = "its ids are off by one: each state stands one row before its token"
    STALE = "its states are not those whose statistics were taken when they were written"


@dataclass
class Evidence:
    """Counts over the rows that were scored; they add up over shards.

    ``compared`` rows were compared with the tokens at ``SHIFTS`` from the one that they predict, ``agreed`` of them equal it;
    of ``rows`` rows, ``unit`` look like a norm's output; ``log_prob`` is the rows' sum as they are normed, ``log_prob_bare``
    the sum of those taken without the norm, ``bare`` rows.
    """

    rows: int = 0
    compared: int = 0
    agreed: tuple[int, int, int] = (0, 0, 0)
    unit: int = 0
    bare: int = 0
    log_prob: float = 0.0
    log_prob_bare: float = 0.0

    def __add__(self, other: "Evidence") -> "Evidence":
        back, here, ahead = (one + two for one, two in zip(self.agreed, other.agreed, strict=True))
        mine, theirs = self.as_dict(), other.as_dict()
        return Evidence(**{**{name: mine[name] + theirs[name] for name in mine}, "agreed": (back, here, ahead)})

    def as_dict(self) -> dict[str, Any]:
        """Its JSON."""
        return asdict(self)

    @classmethod
    def of(cls, stored: dict[str, Any]) -> "Evidence":
        """From its JSON."""
        return cls(**{**stored, "agreed": tuple(stored["agreed"])})

    def faults(self) -> list[Fault]:
        """The faults that these counts prove."""
        return [*([Fault.NORMED] if self._normed() else []), *self._shifted()]

    def _normed(self) -> bool:
        """Rows look like the norm's output, and make more of the tokens without the norm than with it."""
        return self.looks_normed and self.bare > 0 and self.log_prob_bare / self.bare > self.log_prob / self.rows

    @property
    def looks_normed(self) -> bool:
        """Whether nearly all rows have the root mean square of the norm's output."""
        return self.rows > 0 and self.unit >= _NEARLY_ALL * self.rows

    def _shifted(self) -> list[Fault]:
        back, here, ahead = self.agreed
        better, fault = max((back, Fault.LATE), (ahead, Fault.EARLY))
        clear = better - here > _CLEAR * (better + here) ** 0.5  # rows that agree with both cancel out
        return [fault] if clear and better > 2 * here and better >= _LEAST_AGREEMENT * self.compared else []


def looks_unit(gain_free_rms: np.ndarray) -> int:
    """How many rows have a root mean square of 1 once the norm's gain is divided out."""
    return int((np.abs(gain_free_rms - 1) < _UNIT).sum())


def chosen_samples(digest: str, count: int, share: float) -> np.ndarray:
    """The samples whose states are read: BOOL [count], by a hash of the ids' digest and the sample's number; at least one."""
    seeds = (hashlib.blake2b(f"{digest} {number}".encode(), digest_size=8).digest() for number in range(count))
    values = np.array([int.from_bytes(seed) for seed in seeds], np.uint64)
    chosen = (values < share * 2.0**64) | (share >= 1)
    if count:
        chosen[values.argmin()] = True
    return chosen
