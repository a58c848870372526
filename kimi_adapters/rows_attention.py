"""Attention of a draft's rows on a GPU: over step 0's keys by flex attention, over each row's own chain beside it.

speculators appends the chain's keys to step 0's and masks all but a diagonal of them, so that the blocks of a mask grow
with every step. A row sees one key a step of its chain: their scores are R · s products of one head's size, and the two
parts meet by the logarithm of step 0's sum of exponentials (Milakov and Gimelshein 2018), which flex attention gives.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

_flex: Any = torch.compile(flex_attention)


class Sight:
    """Which of step 0's T indices each of R rows sees: those of its own document that are not later, and always itself.

    documents [T] int64, -1 where nothing is; rows [R] int64 into T.
    """

    def __init__(self, documents: Tensor, rows: Tensor):
        self.documents, self.rows = documents, rows
        self._of: tuple[Tensor, Sight] | None = None

    def __getitem__(self, rows: Tensor) -> "Sight":
        """That of some rows, numbers of T, out of a sight of all; asked again for the same, it gives the same."""
        if self._of is None or self._of[0] is not rows:
            self._of = rows, Sight(self.documents, rows)
        return self._of[1]

    @cached_property
    def blocks(self) -> BlockMask:
        """As flex attention wants it."""
        documents, rows = self.documents, self.rows
        own = documents[rows]

        def seen(batch: Tensor, head: Tensor, row: Tensor, index: Tensor) -> Tensor:
            same = (own[row] == documents[index]) & (own[row] != -1)
            return (same & (index <= rows[row])) | (index == rows[row])

        return create_block_mask(seen, None, None, len(rows), len(documents), device=documents.device)


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, sight: Sight, own_keys: Sequence[Tensor], own_values: Sequence[Tensor]
) -> Tensor:
    """Queries [R, h, d] over keys and values [T, n, d] and over each row's own, [R, n, d] a step of its chain: [R, h * d]."""
    q, k, v = (one.transpose(0, 1)[None] for one in (queries, keys, values))
    shared = queries.shape[1] != keys.shape[1]
    mixed, aux = _flex(q, k, v, block_mask=sight.blocks, enable_gqa=shared, return_aux=AuxRequest(lse=True))
    mixed = mixed[0].transpose(0, 1)
    if own_keys:
        mixed = _joined(mixed, aux.lse[0].t(), queries, list(own_keys), list(own_values))
    return mixed.reshape(len(queries), -1)


def joined(mixed: Tensor, lse: Tensor, queries: Tensor, own_keys: list[Tensor], own_values: list[Tensor]) -> Tensor:
    """Step 0's mixture [R, h, d] with its logarithm of the sum of exponentials [R, h], and the chain's: [R, h, d]."""
    rows, heads, size = queries.shape
    groups = own_keys[0].shape[1]
    q = queries.view(rows, groups, heads // groups, size).float()
    own = [(q * keys[:, :, None].float()).sum(-1).view(rows, heads) * size**-0.5 for keys in own_keys]
    shares = torch.softmax(torch.stack([lse.float(), *own], dim=-1), dim=-1)
    total = shares[..., :1] * mixed.float()
    for step, values in enumerate(own_values):
        share = shares[..., step + 1].view(rows, groups, heads // groups, 1)
        total = total + (share * values[:, :, None].float()).view(rows, heads, size)
    return total.to(mixed.dtype)


_joined: Any = torch.compile(joined)
