"""Which packs an optimizer step takes, and what each weighs in it."""

from collections.abc import Sequence

from kimi_adapters.packing import PackedShards, Piece
from kimi_adapters.ttt import EPSILON


class EpochPacks:
    """speculators' `train_loader`: its length is that of epoch 0 (they may differ by a pack)."""

    def __init__(self, data: PackedShards, packs_per_step: int):
        self.data, self.packs_per_step = data, packs_per_step

    def steps(self, epoch: int) -> list[list[list[Piece]]]:
        """The packs of each optimizer step of an epoch."""
        packs = self.data.packs(epoch)
        return [packs[i : i + self.packs_per_step] for i in range(0, len(packs), self.packs_per_step)]

    def __len__(self) -> int:
        return len(self.steps(0))


def shares(packs: Sequence[Sequence[Piece]]) -> list[float]:
    """What each pack's loss weighs in a step, so that their sum is the loss of all their documents in one pack.

    A pack's loss divides its tokens' sum by their count plus EPSILON; the step's divides by the count over all packs.
    """
    counts = [sum(piece.supervised for piece in pack) for pack in packs]
    return [(count + EPSILON) / (sum(counts) + EPSILON) for count in counts]
