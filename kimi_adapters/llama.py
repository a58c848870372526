"""The Llama forward, our own: the pieces of a layer, and a resident verifier with a key-value cache.

Sums of norms and rotations are taken in float32 whatever the weights' dtype. Formulas: transformers'
modeling_llama.py and, for the stretched rotary frequencies, `rope_type` "llama3" of its modeling_rope_utils.py.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from errors import UserError
from kimi_adapters.config import TextConfig
from kimi_adapters.weights import Checkpoint

FEW_ROWS = 64


@dataclass(frozen=True)
class LayerWeights:
    """One layer's weights, [out, in]; q, k and v are one matrix, gate and up another: fewer, larger products."""

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    output: Tensor
    output_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


def pack_layer(tensors: Mapping[str, Tensor]) -> LayerWeights:
    """LayerWeights from a checkpoint's names inside a layer ("self_attn.q_proj.weight")."""

    def joined(names: Sequence[str], suffix: str) -> Tensor:
        return torch.cat([tensors[f"{name}.{suffix}"] for name in names])

    def bias(*names: str) -> Tensor | None:
        return joined(names, "bias") if f"{names[0]}.bias" in tensors else None

    qkv = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    gate_up = ("mlp.gate_proj", "mlp.up_proj")
    return LayerWeights(
        input_norm=tensors["input_layernorm.weight"],
        qkv=joined(qkv, "weight"),
        qkv_bias=bias(*qkv),
        output=tensors["self_attn.o_proj.weight"],
        output_bias=bias("self_attn.o_proj"),
        mlp_norm=tensors["post_attention_layernorm.weight"],
        gate_up=joined(gate_up, "weight"),
        gate_up_bias=bias(*gate_up),
        down=tensors["mlp.down_proj.weight"],
        down_bias=bias("mlp.down_proj"),
    )


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last dimension, the mean in float32; the dtype of x."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * (wide * scale).to(x.dtype)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., in] · weightᵀ + bias, weight [out, in].

    For few rows on a CPU the weight goes on the left: MKL then takes 0.5 to 0.9 of the time (4 rows of SmolLM2's head:
    17 ms for 34; 48 rows of its layers: 200 for 280).
    """
    rows = x.numel() // x.shape[-1]
    if x.device.type != "cpu" or not 1 < rows <= FEW_ROWS:
        return F.linear(x, weight, bias)
    out = (weight @ x.reshape(rows, -1).t()).t().contiguous().view(*x.shape[:-1], -1)
    return out if bias is None else out + bias


def inverse_frequencies(config: TextConfig, device: torch.device | str) -> Tensor:
    """Rotary inverse frequencies, float32 [head_dim / 2]."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    scaling = config.rope_scaling
    if scaling is not None:
        lengths = 2 * math.pi / frequencies
        old, low, high = scaling.original_max_position_embeddings, scaling.low_freq_factor, scaling.high_freq_factor
        smooth = ((old / lengths - low) / (high - low)).clamp(0, 1)
        frequencies = (1 - smooth) * frequencies / scaling.factor + smooth * frequencies
    return frequencies.to(device)


def rope_tables(frequencies: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin, float32 [..., 1, head_dim] for integer positions [...]; they broadcast over heads."""
    angles = positions[..., None].float() * frequencies
    angles = torch.cat([angles, angles], dim=-1)[..., None, :]
    return angles.cos(), angles.sin()


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates x [..., heads, head_dim] in float32, pairs lying head_dim / 2 apart; the dtype of x."""
    wide = x.float()
    half = wide.shape[-1] // 2
    turned = torch.cat([-wide[..., half:], wide[..., :half]], dim=-1)
    return (wide * cos + turned * sin).to(x.dtype)


def project_qkv(layer: LayerWeights, config: TextConfig, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The attention's inputs of the residual stream x [..., hidden]: q [..., heads, D], k and v [..., kv_heads, D]."""
    normed = rms_norm(x, layer.input_norm, config.rms_norm_eps)
    heads = linear(normed, layer.qkv, layer.qkv_bias).unflatten(-1, (-1, config.head_dim))
    rotated = config.num_heads + config.num_kv_heads
    qk = apply_rope(heads[..., :rotated, :], cos, sin)
    return qk[..., : config.num_heads, :], qk[..., config.num_heads :, :], heads[..., rotated:, :]


def finish_layer(layer: LayerWeights, config: TextConfig, x: Tensor, attended: Tensor) -> Tensor:
    """The residual stream [..., hidden] that leaves the layer, from the one that entered and the heads' outputs
    [..., heads · D]: output projection, then the SwiGLU block."""
    x = x + linear(attended, layer.output, layer.output_bias)
    normed = rms_norm(x, layer.mlp_norm, config.rms_norm_eps)
    gate, up = linear(normed, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
    return x + linear(F.silu(gate) * up, layer.down, layer.down_bias)


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

    def __init__(self, config: TextConfig, rows: int, capacity: int, device: torch.device, dtype: torch.dtype):
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
    """A resident Llama. UserError when the checkpoint lacks a tensor."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32):
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
