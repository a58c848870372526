"""The gradient of one optimizer step: its packs shared out to ranks, each weighed by its supervised tokens."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kimi_adapters.data_parallel import gradients
from kimi_adapters.epoch_packs import shares
from kimi_adapters.packing import Batch, Piece
from kimi_adapters.prefetch import Prefetch, Wanted
from kimi_adapters.process_group import Ranks

Packs = Sequence[Sequence[Piece]]


class StepGradient:
    """Gradients of `loss` (a PackLoss, as `data_parallel.over_ranks` gives it), added up over packs and ranks."""

    def __init__(self, loss: torch.nn.Module, ranks: Ranks):
        self.loss, self.ranks = loss, ranks

    def wanted(self, packs: Packs, place: tuple[int, int]) -> list[Wanted]:
        """What this rank takes of the packs of a step at (epoch, number of the step), in order."""
        return [(packs[number], (*place, number)) for number, _ in self._mine(packs)]

    def of(self, packs: Packs, batches: Prefetch) -> dict[str, float]:
        """The step's loss and metric sums; the gradient is left in the parameters. The batches are those of `wanted`."""
        mine = self._mine(packs)
        names: list[str] = []
        added: Tensor | None = None
        for number, share in mine:
            names, values = self._of_pack(batches.take(), share, last=number == mine[-1][0])
            added = values if added is None else added + values
        assert added is not None
        numbers = added.tolist()  # the step's one wait for the device
        batches.check()
        return dict(zip(names, self.ranks.sums(numbers), strict=True))

    def _mine(self, packs: Packs) -> Sequence[tuple[int, float]]:
        """Numbers and shares of a rank's packs: every so many-th.

        A rank that gets none computes the first with a weight of 0: all must take part in the sum.
        """
        return self.ranks.share(list(enumerate(shares(packs)))) or [(0, 0.0)]

    def _of_pack(self, batch: Batch, share: float, last: bool) -> tuple[list[str], Tensor]:
        """Names and float64 values of a pack's loss, weighed, and of its metric sums."""
        with gradients(self.loss, last):
            loss, metrics = self.loss(batch)
            (loss * share).backward()
        values = {"loss": loss.detach() * share, **metrics}
        numbers = torch.stack([value.float() for value in values.values()]).double()
        return list(values), numbers if share else 0.0 * numbers
