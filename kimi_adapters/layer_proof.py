"""Which residual stream each of an engine's states is: its states for a fixed text beside those of our own forward.

Nothing fails when an engine numbers its layers otherwise or norms the last state: acceptance is only lower.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from kimi_adapters.layer_ids import check_layer_ids
from kimi_adapters.tensor_file import TensorFile, Writable
from kimi_adapters.torch_file import read_tensors, write_tensors
from kimi_adapters.weights import Checkpoint

REFERENCE = "reference.safetensors"
LAST, NORMED, NORMED_TWICE = "last", "last, normed", "last, normed twice"
# Relative error that nine rows of ten of the same state keep: float32 was within 2.1e-5 of vLLM's; bfloat16 has 8 bits, and
# its roundings add up over the layers.
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.1}
_ROWS = 0.9  # a near tie of an expert's router may move single rows
CLEARLY = 0.5  # the state found must be nearer by this factor than the next
LEAST_AGREED = {"float32": 1.0, "bfloat16": 0.8}  # of the engine's own next tokens; near ties fall either way in bfloat16


@dataclass(frozen=True)
class Reference:
    """Our own forward of a text: ``token_ids`` I64 [T]; ``streams`` F32 [L + 1, T, H]: what enters each layer, then what
    leaves the last."""

    token_ids: Tensor
    streams: Tensor

    def write(self, file: Writable) -> None:
        """As a safetensors file."""
        write_tensors(file, {"token_ids": self.token_ids, "streams": self.streams})

    @classmethod
    def read(cls, path: Path) -> "Reference":
        """From such a file."""
        with TensorFile(path) as file:
            return cls(**read_tensors(file))


@dataclass(frozen=True)
class Finding:
    """What one of the engine's states is: its name as asked for, the nearest of ours, and relative errors to that, to the
    next nearest and to what was asked for."""

    asked: str
    found: str
    error: float
    next_error: float
    asked_error: float

    def is_found(self, dtype: str) -> bool:
        """Whether it is one of ours at all."""
        return self.error <= TOLERANCE[dtype] and self.error <= CLEARLY * self.next_error


@dataclass(frozen=True)
class Proof:
    """Findings of all states, and how many of the engine's ``generated`` next tokens norm and head give from its last state."""

    findings: list[Finding]
    agreed: int
    generated: int


class Prover:
    """Compares an engine's states with a reference; of the checkpoint the final norm and the head are read, in
    float32 (4.7 GB for Kimi-K2.5)."""

    def __init__(self, reference: Reference, checkpoint: Checkpoint, layer_ids: Sequence[int], dtype: str) -> None:
        self._reference, self._dtype = reference, dtype
        self._gain, self._head = checkpoint.norm(torch.float32), checkpoint.lm_head(torch.float32)
        self._eps = checkpoint.config.rms_norm_eps
        count = len(reference.streams) - 1
        self.asked = [*(f"layer.{k}" for k in check_layer_ids(layer_ids, count)), LAST]
        last = reference.streams[-1]
        self._ours = {f"layer.{k}": stream for k, stream in enumerate(reference.streams[:-1])}
        self._ours |= {LAST: last, NORMED: self._normed(last), NORMED_TWICE: self._normed(self._normed(last))}

    def _normed(self, rows: Tensor) -> Tensor:
        return rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + self._eps) * self._gain

    def prove(self, states: Tensor, next_ids: Sequence[int]) -> Proof:
        """``states`` [T + n - 1, S, H] are the engine's for the text and its own greedy answer of n tokens, ``next_ids``."""
        length = len(self._reference.token_ids)
        rows = states.float()
        findings = [self._find(self._name(place), rows[:length, place]) for place in range(rows.shape[1])]
        logits = self._normed(rows[length - 1 :, -1]) @ self._head.T
        agreed = int((logits.argmax(-1) == torch.tensor(next_ids)).sum())
        return Proof(findings, agreed, len(next_ids))

    def _name(self, place: int) -> str:
        return self.asked[place] if place < len(self.asked) else "nothing"

    def _find(self, asked: str, rows: Tensor) -> Finding:
        errors = {name: _error(rows, ours) for name, ours in self._ours.items()}
        nearest, following = sorted(errors, key=lambda name: errors[name])[:2]
        return Finding(asked, nearest, errors[nearest], errors[following], errors.get(asked, float("inf")))

    def fault(self, proof: Proof) -> str | None:
        """What is wrong, in words that end a sentence about the engine; None where all is as asked."""
        dtype, findings = self._dtype, proof.findings
        if len(findings) != len(self.asked):
            return f"gives {len(findings)} states a token where {len(self.asked)} were asked for ({', '.join(self.asked)})"
        unknown = [one for one in findings if not one.is_found(dtype)]
        if len(unknown) == len(findings):
            return f"gives states that are none of this verifier's (nearest: {_told(min(unknown, key=lambda one: one.error))})"
        shift = _shift(findings[:-1])
        if shift:
            direction = "leave" if shift > 0 else "enter the layers before"
            return f"gives states that {direction} the layers asked for: its ids are shifted by {shift:+d}"
        last = findings[-1]
        if last.found == NORMED:
            return "gives the last state AFTER the final norm: whoever reads it would norm it twice"
        if last.found == NORMED_TWICE:
            return "gives a last state that was normed twice"
        wrong = [one for one in findings if one.found != one.asked or one in unknown]
        if wrong:
            return f"gives as {wrong[0].asked} what is nearest to {_told(wrong[0])}"
        if proof.agreed < LEAST_AGREED[dtype] * proof.generated:
            return (
                f"chose other next tokens than norm and head make of its last state: {proof.agreed} of {proof.generated} agree"
            )
        return None


def _shift(findings: Sequence[Finding]) -> int:
    """By how many layers all auxiliary states are off; 0 unless all are by the same."""
    places = [(_place(one.asked), _place(one.found)) for one in findings]
    shifts = {found - asked for asked, found in places if asked is not None and found is not None}
    return shifts.pop() if len(shifts) == 1 and all(found is not None for _, found in places) else 0


def _place(name: str) -> int | None:
    return int(name.removeprefix("layer.")) if name.startswith("layer.") else None


def _error(rows: Tensor, ours: Tensor) -> float:
    """What ``_ROWS`` of the rows keep of ‖rows - ours‖ / ‖ours‖, each by itself: the first token's norm is a hundred times the
    others'."""
    differences = torch.linalg.vector_norm(rows - ours, dim=1)
    return float((differences / torch.linalg.vector_norm(ours, dim=1)).quantile(_ROWS))


def _told(finding: Finding) -> str:
    return f"{finding.found}, relative error {finding.error:.1e}"
