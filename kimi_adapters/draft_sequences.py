"""A draft's cache of several sequences side by side: decoding alone has a use for it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kimi_adapters.draft_runner import DraftCache, DraftRunner


class SequenceCache(DraftCache):
    """Slots are filled in the order in which tokens are fed, whosever they are; nothing is ever taken back. Each `feed` comes
    after a `place` of its tokens.

    `lengths` counts each sequence's tokens, `last` is the slot of its last one.
    """

    def __init__(self, draft: DraftRunner, capacity: int, sequences: int):
        super().__init__(draft.shape, capacity, draft.device, draft.dtype)
        self._owners, self._indices = (torch.empty(capacity, device=draft.device, dtype=torch.int64) for _ in range(2))
        self.lengths = [0] * sequences
        self.last = [-1] * sequences

    def place(self, owners: Sequence[int]) -> None:
        """Says whose tokens are fed next, each sequence's in its order."""
        indices = []
        for slot, owner in enumerate(owners, self.length):
            indices.append(self.lengths[owner])
            self.lengths[owner] += 1
            self.last[owner] = slot
        filled = slice(self.length, self.length + len(owners))
        self._owners[filled], self._indices[filled] = torch.tensor(owners), torch.tensor(indices)

    def owners(self, slots: Tensor) -> Tensor:
        """Whose token each slot holds."""
        return self._owners[slots]

    def indices(self, slots: Tensor) -> Tensor:
        """As DraftCache.indices."""
        return self._indices[slots]

    def hidden(self, slots: Tensor, count: int) -> Tensor:
        """As DraftCache.hidden: another sequence's, and what comes later in its own."""
        others = self._owners[:count] != self.owners(slots)[:, None]
        return others | (self._indices[:count] > self._indices[slots][:, None])
