"""The draft's arithmetic as functions of its tensors: one implementation for training on CPU, replay and decoding.

Equal to speculators' Eagle3DraftModel.forward (a test holds it to that) without its cost: rows that no loss and no
proposal reads are not computed, and nothing of transformers or speculators is imported. The layout of a step:

    step 0 at index j: auxiliary states of token j, embedding of token j + 1, position j + 1 -> predicts token j + 2
    step s at index j: the state of step s - 1, embedding of token j + 1 + s, position j + 1 + s
    attention: index j sees the step-0 keys of the indices it may see (causal, its own document), and, of the later
    steps, its own keys alone.

Shapes: T indices of step 0, R rows that go on, H hidden, h heads, n key-value heads, d head size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from kimi_adapters.draft_rope import inverse_frequencies
from kimi_adapters.rope_parameters import ROPE_TYPES, rope_fields

KeyValue = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class DraftShape:
    """What of a draft's config.json its arithmetic depends on."""

    vocab_size: int
    draft_vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: Mapping[str, Any]
    layer_ids: tuple[int, ...]
    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool
    qk_norm: bool

    @classmethod
    def from_config(cls, values: Mapping[str, Any]) -> Self:
        """From a speculators config.json as `draft.draft_config_values` writes it. KeyError: a field is missing."""
        layer = values["transformer_layer_config"]
        rope = layer["rope_parameters"]
        if layer["model_type"] not in ("llama", "qwen3") or rope["rope_type"] not in ROPE_TYPES:
            raise ValueError(f"drafts of Llama or Qwen3 layers are run here, their positions {', '.join(ROPE_TYPES)}")
        return cls(
            vocab_size=layer["vocab_size"],
            draft_vocab_size=values["draft_vocab_size"],
            hidden_size=layer["hidden_size"],
            num_layers=layer["num_hidden_layers"],
            num_heads=layer["num_attention_heads"],
            num_kv_heads=layer["num_key_value_heads"],
            head_dim=layer["head_dim"],
            rms_norm_eps=layer["rms_norm_eps"],
            rope=rope_fields(rope),
            layer_ids=tuple(values["eagle_aux_hidden_state_layer_ids"]),
            norm_before_residual=values["norm_before_residual"],
            norm_before_fc=values["norm_before_fc"],
            fc_norm=values["fc_norm"],
            norm_output=values["norm_output"],
            qk_norm=layer["model_type"] == "qwen3",
        )

    def tensor_names(self) -> set[str]:
        """The tensors that a draft of this shape computes with, under speculators' names."""
        attention = [f"self_attn.{name}_proj" for name in "qkvo"]
        inside = [*attention, "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
        inside += ["input_layernorm", "post_attention_layernorm"]
        inside += ["self_attn.q_norm", "self_attn.k_norm"] if self.qk_norm else []
        names = ["embed_tokens", "fc", "norm", "lm_head", "layers.0.hidden_norm"]
        names += [f"layers.{layer}.{name}" for layer in range(self.num_layers) for name in inside]
        names += ["input_norm"] if self.norm_before_fc else []
        names += [f"fc_norm.{i}" for i in range(len(self.layer_ids))] if self.fc_norm else []
        return {f"{name}.weight" for name in names}


class KeyStore(Protocol):
    """The step-0 keys and values of every layer."""

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> KeyValue:
        """Appends [T, n, d] and returns all that the layer holds, [past + T, n, d]."""

    def stored(self, layer: int) -> KeyValue:
        """All that the layer holds."""


class FreshKeys:
    """The store of a single pass: step 0 writes, later steps read; gradients flow through."""

    def __init__(self) -> None:
        self._layers: dict[int, KeyValue] = {}

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> KeyValue:
        self._layers[layer] = keys, values
        return keys, values

    def stored(self, layer: int) -> KeyValue:
        return self._layers[layer]


class DraftLayers:
    """A draft's shape and its tensors, under speculators' names ("fc.weight", "layers.0.mlp.up_proj.weight", …)."""

    def __init__(self, shape: DraftShape, weights: Mapping[str, Tensor]):
        self.shape = shape
        self.weights = weights
        frequencies, self._stretch = inverse_frequencies(shape.rope, shape.head_dim)
        self._frequencies = frequencies.to(weights["fc.weight"].device)

    row_block = 1  # the rows that go on come in so many

    def sight(self, documents: Tensor) -> Tensor:
        """What the indices of a pack see of one another, from the document [T] of each, -1 where nothing is.

        [T, T] float32: 0 where an index sees another (its own document's, not later; always itself), -inf elsewhere.
        """
        index = torch.arange(len(documents), device=documents.device)
        same = (documents[:, None] == documents[None]) & (documents[:, None] != -1)
        seen = (same & (index[:, None] >= index[None])) | (index[:, None] == index[None])
        return torch.zeros(seen.shape, device=documents.device).masked_fill_(~seen, float("-inf"))

    def first_step(self, tokens: Tensor, aux: Tensor, positions: Tensor, store: KeyStore, bias: Any, rows: Tensor) -> Tensor:
        """Step 0 over T indices; the keys of all of them go into `store`, the states of `rows` come back.

        Parameters: tokens, positions [T] int64; aux [T, len(layer_ids) * H]; bias [T, past + T], 0 where the index
        may look and -inf elsewhere, or what `_attend` takes for it; rows [R] int64 into T. Returns the raw states [R, H] (see
        `read_out`).
        """
        hidden, embeds = self._fuse(aux), self._embed(tokens)
        for layer in range(self.shape.num_layers):
            attention_input, residual = self._layer_input(layer, embeds, hidden)
            queries_of = attention_input
            if layer == self.shape.num_layers - 1:
                queries_of, residual = attention_input.index_select(0, rows), residual.index_select(0, rows)
                bias = bias[rows]
            keys, values = store.extend(layer, *self._keys_values(layer, attention_input, positions))
            at = positions[rows] if len(queries_of) != len(positions) else positions
            mixed = self._attend(self._queries(layer, queries_of, at), keys, values, bias, [])
            hidden = self._finish(layer, residual, mixed)
        return hidden

    def chain_step(
        self,
        tokens: Tensor,
        hidden: Tensor,
        positions: Tensor,
        store: KeyStore,
        bias: Any,
        chain: list[list[KeyValue]],
    ) -> Tensor:
        """A later step over R rows: tokens, positions [R]; hidden [R, H] as `read_out` feeds it back.

        `bias` [R, stored] says which step-0 keys each row sees; `chain` holds, a layer, the keys of the rows' own
        earlier steps and is extended in place. Returns the raw states [R, H].
        """
        embeds = self._embed(tokens)
        for layer in range(self.shape.num_layers):
            attention_input, residual = self._layer_input(layer, embeds, hidden)
            chain[layer].append(self._keys_values(layer, attention_input, positions))
            keys, values = store.stored(layer)
            queries = self._queries(layer, attention_input, positions)
            hidden = self._finish(layer, residual, self._attend(queries, keys, values, bias, chain[layer]))
        return hidden

    def read_out(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """(what the head reads, what the next step is fed), both [R, H]."""
        normed = self._norm("norm", hidden)
        return normed, normed if self.shape.norm_output else hidden

    def logits(self, normed: Tensor) -> Tensor:
        """[R, draft vocabulary]."""
        return normed @ self.weights["lm_head.weight"].t()

    def new_chain(self) -> list[list[KeyValue]]:
        """An empty chain for `chain_step`."""
        return [[] for _ in range(self.shape.num_layers)]

    def _fuse(self, aux: Tensor) -> Tensor:
        if self.shape.norm_before_fc:
            aux = self._norm("input_norm", aux)
        if self.shape.fc_norm:
            parts = aux.chunk(len(self.shape.layer_ids), dim=-1)
            aux = torch.cat([self._norm(f"fc_norm.{i}", part) for i, part in enumerate(parts)], dim=-1)
        return self._linear("fc", aux)

    def _embed(self, tokens: Tensor) -> Tensor:
        return self.weights["embed_tokens.weight"][tokens]

    def _layer_input(self, layer: int, embeds: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """What attention reads and what is added to its result. Layer 0 reads the embedding beside the state."""
        if layer > 0:
            return self._norm(f"layers.{layer}.input_layernorm", hidden), hidden
        normed = self._norm("layers.0.hidden_norm", hidden)
        both = torch.cat([self._norm("layers.0.input_layernorm", embeds), normed], dim=-1)
        return both, normed if self.shape.norm_before_residual else hidden

    def _queries(self, layer: int, x: Tensor, positions: Tensor) -> Tensor:
        queries = self._linear(f"layers.{layer}.self_attn.q_proj", x)
        heads = queries.view(len(x), self.shape.num_heads, self.shape.head_dim)
        return self._rotate(self._head_norm(f"layers.{layer}.self_attn.q_norm", heads), positions)

    def _keys_values(self, layer: int, x: Tensor, positions: Tensor) -> KeyValue:
        size = (len(x), self.shape.num_kv_heads, self.shape.head_dim)
        keys = self._linear(f"layers.{layer}.self_attn.k_proj", x).view(size)
        keys = self._head_norm(f"layers.{layer}.self_attn.k_norm", keys)
        return self._rotate(keys, positions), self._linear(f"layers.{layer}.self_attn.v_proj", x).view(size)

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor, chain: Sequence[KeyValue]) -> Tensor:
        """Queries [R, h, d] over keys and values [S, n, d] with bias [R, S], and over each row's own chain: [R, h * d]."""
        rows, heads, size = queries.shape
        seen, groups, _ = keys.shape
        sharing = heads // groups  # query heads that share a key head
        queries = (queries * size**-0.5).view(rows, groups, sharing, size).permute(1, 2, 0, 3)
        grouped = queries.reshape(groups, sharing * rows, size)
        scores = torch.bmm(grouped, keys.permute(1, 2, 0)).view(groups, sharing, rows, seen) + bias
        if chain:
            own_keys = torch.stack([keys for keys, _ in chain], dim=2)  # [R, n, steps, d]
            own = torch.einsum("ngrd,rnsd->ngrs", queries, own_keys)
            scores = torch.cat([scores, own], dim=-1)
        shares = torch.softmax(scores, dim=-1, dtype=torch.float32).to(values.dtype)
        stored = shares[..., :seen].reshape(groups, sharing * rows, seen)
        mixed = torch.bmm(stored, values.permute(1, 0, 2)).view(queries.shape)
        if chain:
            own_values = torch.stack([values for _, values in chain], dim=2)
            mixed = mixed + torch.einsum("ngrs,rnsd->ngrd", shares[..., seen:], own_values)
        return mixed.permute(2, 0, 1, 3).reshape(rows, heads * size)

    def _finish(self, layer: int, residual: Tensor, mixed: Tensor) -> Tensor:
        """Output projection, residual, and the gated feed-forward."""
        hidden = residual + self._linear(f"layers.{layer}.self_attn.o_proj", mixed)
        x = self._norm(f"layers.{layer}.post_attention_layernorm", hidden)
        gate = self._linear(f"layers.{layer}.mlp.gate_proj", x)
        up = self._linear(f"layers.{layer}.mlp.up_proj", x)
        return hidden + self._linear(f"layers.{layer}.mlp.down_proj", self._gated(gate, up))

    def _gated(self, gate: Tensor, up: Tensor) -> Tensor:
        return torch.nn.functional.silu(gate) * up

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotary positions on [R, heads, d] (Su et al. 2021, halves as in Hugging Face's Llama), angles in float32."""
        half = self.shape.head_dim // 2
        angles = positions.float()[:, None, None] * self._frequencies
        cos, sin = (angles.cos() * self._stretch).to(x.dtype), (angles.sin() * self._stretch).to(x.dtype)
        first, second = x[..., :half], x[..., half:]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        """RMSNorm (Zhang and Sennrich 2019), its mean in float32."""
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.shape.rms_norm_eps)
        return self.weights[f"{name}.weight"] * (wide * scale).to(x.dtype)

    def _head_norm(self, name: str, x: Tensor) -> Tensor:
        """Qwen3's norm over each head of [R, heads, d]; a Llama layer has none."""
        return self._norm(name, x) if self.shape.qk_norm else x

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, self.weights[f"{name}.weight"])
