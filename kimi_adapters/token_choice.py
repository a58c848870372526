"""How draft-and-verify chooses: the likeliest token, or a draw at a temperature by speculative sampling.

A step is asked for the draft's proposals, and then for what of them is kept and the verifier's own next token: of all answers
that go side by side at once, since each look at a device's numbers waits for it.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kimi_adapters.acceptance_length import leading_matches


@dataclass(frozen=True)
class Greedy:
    """Temperature 0: a proposal stays if it is the verifier's likeliest token."""


class Sampling:
    """One answer's speculative sampling (Leviathan et al. 2023, Chen et al. 2023): what is emitted is distributed as the
    verifier's own.

    A proposal x drawn from the draft's q stays with probability min(1, p(x) / q(x)); the first that does not is replaced by a
    draw from max(0, p - q), normed. q is 0 outside the draft vocabulary, so that those tokens come as replacements alone.
    Probabilities in float64, softmax(logits / temperature); random numbers of a stream of `seed`, the device's have no part.
    """

    def __init__(self, temperature: float, seed: int | str):
        if not temperature > 0:
            raise ValueError("a temperature above 0 is wanted; Greedy is that of 0")
        self.temperature = temperature
        self.source = random.Random(seed)


TokenChoice = Greedy | Sampling


class StepChoices:
    """One step of R answers, each by its own choice: `propose` for every token of the chains, then `judge`."""

    def __init__(self, choices: Sequence[TokenChoice]):
        drawing = [(row, choice) for row, choice in enumerate(choices) if isinstance(choice, Sampling)]
        self._rows = [row for row, _ in drawing]
        self._drawing = [choice for _, choice in drawing]
        self._proposed: list[Tensor] = []
        self._targets: Tensor  # of the proposals; there are none before the first

    def first(self, logits: Tensor) -> list[int]:
        """The verifier's tokens from its logits [R, V]."""
        tokens = logits.argmax(dim=-1)
        if self._drawing:
            tokens[self._rows] = self._drawn(self._shares(logits))
        found: list[int] = tokens.tolist()
        return found

    def propose(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Draft ids [R] from the draft's logits [R, draft vocabulary]; `targets` are their target ids [draft vocabulary]."""
        ids = logits.argmax(dim=-1)
        if self._drawing:
            shares = self._shares(logits)
            self._proposed.append(shares)
            self._targets = targets
            ids[self._rows] = self._drawn(shares)
        return ids

    def judge(self, proposals: Sequence[Sequence[int]], logits: Tensor) -> list[tuple[list[int], int]]:
        """(tokens that are emitted, proposals among them) of each answer from the verifier's logits [R, k + 1, V] after the
        last known token and after each of the k `proposals`, target ids in the order in which they were proposed."""
        found = []
        for proposed, likeliest in zip(proposals, logits.argmax(dim=-1).tolist(), strict=True):
            matches = leading_matches(proposed, likeliest)
            found.append((likeliest[: matches + 1], matches))
        if self._drawing:
            for row, judged in zip(self._rows, self._judged([proposals[row] for row in self._rows], logits), strict=True):
                found[row] = judged
        return found

    def _judged(self, proposals: Sequence[Sequence[int]], logits: Tensor) -> list[tuple[list[int], int]]:
        wanted, k = self._shares(logits), len(proposals[0])
        offered = torch.zeros_like(wanted)  # its last row stays 0: the bonus token is drawn from p itself
        if k:
            offered[:, :k, self._targets] = torch.stack(self._proposed, dim=1)
        ids = torch.tensor(proposals, dtype=torch.int64, device=logits.device).view(len(proposals), k, 1)
        pairs = torch.cat([wanted[:, :k].gather(2, ids), offered[:, :k].gather(2, ids)], dim=2).tolist()
        kept = [self._kept(choice, pairs_of) for choice, pairs_of in zip(self._drawing, pairs, strict=True)]
        numbers = torch.arange(len(kept), device=logits.device)
        places = torch.tensor(kept, device=logits.device)
        ends = self._drawn(residual(wanted[numbers, places], offered[numbers, places])).tolist()
        return [([*proposed[:n], end], n) for proposed, n, end in zip(proposals, kept, ends, strict=True)]

    @staticmethod
    def _kept(choice: Sampling, pairs: Sequence[tuple[float, float]]) -> int:
        """How many proposals stay; `pairs` are their p and q."""
        kept = 0
        while kept < len(pairs) and choice.source.random() * pairs[kept][1] < pairs[kept][0]:
            kept += 1
        return kept

    def _shares(self, logits: Tensor) -> Tensor:
        """float64, of the answers that draw."""
        heat = torch.tensor([choice.temperature for choice in self._drawing], dtype=torch.float64, device=logits.device)
        chosen = logits[self._rows].double()
        return torch.softmax(chosen / heat.view(-1, *[1] * (chosen.dim() - 1)), dim=-1)

    def _drawn(self, shares: Tensor) -> Tensor:
        """Tokens [S] by the inverse of each distribution function; the rows of `shares` [S, V] need not be normed."""
        numbers = [choice.source.random() for choice in self._drawing]
        return drawn(shares, torch.tensor(numbers, dtype=torch.float64, device=shares.device))


def drawn(shares: Tensor, numbers: Tensor) -> Tensor:
    """The token of each row of `shares` [S, V] at which so much of its sum is passed as `numbers` [S], of [0, 1), says."""
    reached = shares.cumsum(dim=-1)
    places = torch.searchsorted(reached, (numbers * reached[:, -1])[:, None], right=True)[:, 0]
    last = shares.shape[1] - 1 - (shares.flip(-1) > 0).int().argmax(dim=-1)  # rounding may pass the end
    return torch.minimum(places, last)


def residual(wanted: Tensor, offered: Tensor) -> Tensor:
    """max(0, p - q) of each row, not normed; p itself where rounding leaves nothing of it."""
    left = (wanted - offered).clamp(min=0)
    return torch.where(left.any(dim=-1, keepdim=True), left, wanted)
