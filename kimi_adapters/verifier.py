"""A resident verifier with a key-value cache, for generation and decoding. Extraction does not see this module."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from errors import UserError
from kimi_adapters.layers import linear, rms_norm
from kimi_adapters.llama import finish_layer, pack_layer, project_qkv
from kimi_adapters.llama_config import LlamaConfig
from kimi_adapters.llama_rope import inverse_frequencies, rope_tables
from kimi_adapters.weights import Checkpoint


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Grouped attention of q [B, S, heads, D] over k, v [B, kv_heads, T, D]; gives [B, S, heads · D].

    `mask` is added to the scores, [B, 1, S · groups, T] (rows: all positions of the group's first head, then of its
    second…), or None. The heads of a group are laid side by side as queries, so that k and v are never repeated.
    """
    rows, length, heads, size = q.shape
    groups = heads // k.shape[1]
    folded = q.reshape(rows, length, k.shape[1], groups, size).permute(0, 2, 3, 1, 4)
    out = F.scaled_dot_product_attention(folded.reshape(rows, k.shape[1], groups * length, size), k, v, attn_mask=mask)
    return out.reshape(rows, k.shape[1], groups, length, size).permute(0, 3, 1, 2, 4).reshape(rows, length, -1)


class KVCache:
    """Keys and values of a batch of rows, each with its own length; slot t of a row holds its position t.

    `lengths` is int64 [rows] on the CPU. `keys` and `values` are [layers, rows, kv_heads, capacity, head_dim];
    slots past a row's length hold finite leftovers that the mask hides.
    """

    def __init__(self, config: LlamaConfig, rows: int, capacity: int, device: torch.device, dtype: torch.dtype):
        shape = (config.num_layers, rows, config.num_kv_heads, capacity, config.head_dim)
        self.capacity = capacity
        # Zeros, not empty: a NaN in a hidden slot would come through, 0 · NaN being NaN.
        self._keys = torch.zeros(shape, device=device, dtype=dtype)
        self._values = torch.zeros(shape, device=device, dtype=dtype)
        self.lengths = torch.zeros(rows, dtype=torch.int64)

    @property
    def rows(self) -> int:
        return len(self.lengths)

    def truncate(self, lengths: Tensor | Sequence[int]) -> None:
        """Rolls rows back to `lengths` [rows], none of them longer than now."""
        wanted = torch.as_tensor(lengths, dtype=torch.int64, device="cpu").clone()
        if wanted.shape != self.lengths.shape or bool((wanted > self.lengths).any()) or bool((wanted < 0).any()):
            raise ValueError(f"cannot truncate rows of {self.lengths.tolist()} to {wanted.tolist()}")
        self.lengths = wanted

    def keep(self, rows: Sequence[int]) -> None:
        """Row j becomes what row `rows[j]` was; the others are dropped. Only rows that change place are copied."""
        moved = [(new, old) for new, old in enumerate(rows) if new != old]
        if moved:
            to, origin = (torch.tensor(side, device=self._keys.device) for side in zip(*moved, strict=True))
            used = int(self.lengths[list(rows)].max())
            for store in (self._keys, self._values):
                for layer in store:
                    layer[to, :, :used] = layer[origin, :, :used]
        self.lengths = self.lengths[list(rows)]

    def extend(self, other: "KVCache", copies: int = 1) -> None:
        """Appends `other`'s rows, each `copies` times, behind these; ValueError when they do not fit."""
        first, used = self.rows, int(other.lengths.max())
        added = other.rows * copies
        if first + added > self._keys.shape[1] or used > self.capacity:
            raise ValueError(f"{added} rows of {used} do not fit a cache with {first} of {self._keys.shape[1]} taken")
        for store, source in ((self._keys, other._keys), (self._values, other._values)):
            rows = source[:, : other.rows, :, :used]
            store[:, first : first + added, :, :used] = rows.repeat_interleave(copies, dim=1)
        self.lengths = torch.cat([self.lengths, other.lengths.repeat_interleave(copies)])

    def append(self, layer: int, positions: Tensor, k: Tensor, v: Tensor, used: int) -> tuple[Tensor, Tensor]:
        """Stores k, v [rows, S, kv_heads, D] at `positions` [rows, S]; gives this layer's first `used` slots."""
        keys, values = self._keys[layer, : self.rows], self._values[layer, : self.rows]
        rows = torch.arange(self.rows, device=positions.device)[:, None]
        keys[rows, :, positions] = k
        values[rows, :, positions] = v
        return keys[:, :, :used], values[:, :, :used]


@dataclass(frozen=True)
class Step:
    """`last` [rows, S, hidden] enters the final norm; `aux` [rows, S, n · hidden] are the streams entering the layers
    asked for, side by side."""

    last: Tensor
    aux: Tensor


class Verifier:
    """A resident Llama. UserError when the checkpoint lacks a tensor, or is of a family that does not decode here."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32):
        if not isinstance(checkpoint.config, LlamaConfig):
            raise UserError(
                f"{checkpoint.directory} is of the family {checkpoint.config.family}, which does not decode here; "
                "take answers and acceptance from an engine's endpoint."
            )
        self.config = checkpoint.config
        self.device = torch.device(device)
        self.dtype = dtype
        self.embed = checkpoint.embed(dtype, device)
        self.norm = checkpoint.norm(dtype, device)
        self.lm_head = self.embed if self.config.tie_word_embeddings else checkpoint.lm_head(dtype, device)
        self.layers = [pack_layer(checkpoint.layer(i, dtype, device)) for i in range(self.config.num_layers)]
        self._frequencies = inverse_frequencies(self.config, device)

    def new_cache(self, rows: int, capacity: int) -> KVCache:
        """An empty cache for `rows` rows of up to `capacity` tokens. UserError past the verifier's longest context."""
        if capacity > self.config.max_position_embeddings:
            raise UserError(
                f"{capacity} tokens do not fit the verifier's context of {self.config.max_position_embeddings}; "
                "shorten the prompts or max_new_tokens."
            )
        return KVCache(self.config, rows, capacity, self.device, self.dtype)

    @torch.no_grad()
    def forward(self, ids: Tensor, cache: KVCache, aux_ids: Sequence[int] = ()) -> Step:
        """Appends S positions to every row of `cache` from ids [rows, S], int64.

        Row b's token s takes position cache.lengths[b] + s and sees the positions up to its own. Prompts of unequal
        lengths: pad them on the right with any token and truncate the cache to the true lengths afterwards.
        """
        rows, length = ids.shape
        used = int(cache.lengths.max()) + length
        if rows != cache.rows or used > cache.capacity:
            raise ValueError(f"ids {tuple(ids.shape)} do not fit a cache of {cache.rows} rows, capacity {cache.capacity}")
        positions = (cache.lengths[:, None] + torch.arange(length)).to(self.device)
        cos, sin = rope_tables(self._frequencies, positions)
        mask = self._mask(positions, used)
        x = F.embedding(ids.to(self.device), self.embed)
        entering = {}
        for index, layer in enumerate(self.layers):
            if index in aux_ids:
                entering[index] = x
            q, k, v = project_qkv(layer, self.config, x, cos, sin)
            x = finish_layer(layer, self.config, x, attend(q, *cache.append(index, positions, k, v, used), mask))
        cache.lengths = cache.lengths + length
        aux = torch.cat([entering[k] for k in aux_ids], dim=-1) if aux_ids else x[..., :0]
        return Step(x, aux)

    def _mask(self, positions: Tensor, used: int) -> Tensor:
        hidden = torch.arange(used, device=self.device) > positions[:, None, :, None]
        mask = torch.zeros(hidden.shape, dtype=self.dtype, device=self.device).masked_fill_(hidden, -torch.inf)
        return mask.repeat(1, 1, self.config.num_heads // self.config.num_kv_heads, 1)

    @torch.no_grad()
    def logits(self, last: Tensor) -> Tensor:
        """[..., vocab] of states [..., hidden] that have not been through the final norm."""
        return linear(rms_norm(last, self.norm, self.config.rms_norm_eps), self.lm_head)
