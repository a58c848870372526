"""How draft-and-verify chooses: the likeliest token, or a draw at a temperature by speculative sampling.

A choice is asked for the verifier's own next token, for a draft's proposals, and for what of them is kept.
"""

import random
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from kimi_adapters.acceptance_length import leading_matches


class TokenChoice(Protocol):
    """One answer's way of choosing; its state goes on from step to step."""

    def first(self, logits: Tensor) -> int:
        """The verifier's token from its logits [V]."""

    def propose(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Draft ids [R] from the draft's logits [R, draft vocabulary]; `targets` are their target ids [draft vocabulary]."""

    def judge(self, proposals: Sequence[int], logits: Tensor) -> tuple[list[int], int]:
        """(tokens that are emitted, proposals among them) from the verifier's logits [k + 1, V] after the last known token
        and after each of the k `proposals`, target ids in the order in which they were proposed."""


class Greedy:
    """Temperature 0: a proposal stays if it is the verifier's likeliest token."""

    def first(self, logits: Tensor) -> int:
        return int(logits.argmax())

    def propose(self, logits: Tensor, targets: Tensor) -> Tensor:
        return logits.argmax(dim=-1)

    def judge(self, proposals: Sequence[int], logits: Tensor) -> tuple[list[int], int]:
        choices = logits.argmax(dim=-1).tolist()
        matches = leading_matches(proposals, choices)
        return choices[: matches + 1], matches


class Sampling:
    """Speculative sampling (Leviathan et al. 2023, Chen et al. 2023): what is emitted is distributed as the verifier's own.

    A proposal x drawn from the draft's q stays with probability min(1, p(x) / q(x)); the first that does not is replaced by a
    draw from max(0, p - q), normed. q is 0 outside the draft vocabulary, so that those tokens come as replacements alone.
    Probabilities in float64, softmax(logits / temperature); random numbers of a stream of `seed`, the device's have no part.
    """

    def __init__(self, temperature: float, seed: int | str):
        if not temperature > 0:
            raise ValueError("a temperature above 0 is wanted; Greedy is that of 0")
        self.temperature = temperature
        self._source = random.Random(seed)
        self._proposed: list[Tensor] = []

    def first(self, logits: Tensor) -> int:
        return self._drawn(self._shares(logits))

    def propose(self, logits: Tensor, targets: Tensor) -> Tensor:
        if len(logits) != 1:
            raise ValueError("chains are drawn one at a time")
        shares = self._shares(logits[0])
        self._proposed.append(shares)
        self._targets = targets
        return torch.tensor([self._drawn(shares)], device=logits.device)

    def judge(self, proposals: Sequence[int], logits: Tensor) -> tuple[list[int], int]:
        wanted = self._shares(logits)
        offered = torch.zeros_like(wanted)  # its last row stays 0: the bonus token is drawn from p itself
        if self._proposed:
            offered[: len(proposals), self._targets] = torch.stack(self._proposed)
        self._proposed = []
        ids = torch.tensor(proposals, dtype=torch.int64, device=logits.device)[:, None]
        pairs = torch.cat([wanted[:-1].gather(1, ids), offered[:-1].gather(1, ids)], dim=1).tolist()
        kept = 0
        while kept < len(pairs) and self._source.random() * pairs[kept][1] < pairs[kept][0]:
            kept += 1
        return [*proposals[:kept], self._drawn(residual(wanted[kept], offered[kept]))], kept

    def _shares(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits.double() / self.temperature, dim=-1)

    def _drawn(self, shares: Tensor) -> int:
        """A token by the inverse of the distribution function; `shares` [V] need not be normed."""
        reached = shares.cumsum(dim=-1)
        place = int(torch.searchsorted(reached, self._source.random() * reached[-1:], right=True))
        return place if place < len(shares) else int(shares.nonzero()[-1])  # rounding may pass the end


def residual(wanted: Tensor, offered: Tensor) -> Tensor:
    """max(0, p - q), not normed; p itself where rounding leaves nothing of it."""
    left = (wanted - offered).clamp(min=0)
    return left if bool(left.any()) else wanted
