"""A trained draft at work, without speculators (whose import takes 14 s): states in, chains of proposals out."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from errors import UserError
from kimi_adapters.draft_layers import DraftLayers, DraftShape, KeyValue
from kimi_adapters.tensor_file import TensorFile
from kimi_adapters.torch_file import read_tensors

Choose = Callable[[Tensor, Tensor], Tensor]  # (logits [R, draft vocabulary], their target ids) -> draft ids [R]
PROPOSE_ROWS = 256  # rows of a chain at once: bounds the logits of a long replay
SCORES = 1 << 26  # of attention at once: 268 MB in float32, three times while they become shares


def likeliest(logits: Tensor, targets: Tensor) -> Tensor:
    """The draft ids of the largest logits."""
    return logits.argmax(dim=-1)


class DraftCache:
    """Keys and values of the verified tokens of one sequence, [capacity, n, d] a layer; `length` slots are filled.

    A slot's number is its token's index; a cache of several sequences says otherwise.
    """

    def __init__(self, shape: DraftShape, capacity: int, device: torch.device, dtype: torch.dtype):
        size = (shape.num_layers, capacity, shape.num_kv_heads, shape.head_dim)
        self._keys = torch.empty(size, device=device, dtype=dtype)
        self._values = torch.empty(size, device=device, dtype=dtype)
        self.capacity = capacity
        self.length = 0

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> KeyValue:
        """Writes behind `length`, which moves on when the caller says so: every layer writes at the same place."""
        end = self.length + len(keys)
        self._keys[layer, self.length : end] = keys
        self._values[layer, self.length : end] = values
        return self._keys[layer, :end], self._values[layer, :end]

    def stored(self, layer: int) -> KeyValue:
        return self._keys[layer, : self.length], self._values[layer, : self.length]

    def indices(self, slots: Tensor) -> Tensor:
        """The index of each slot's token in its sequence."""
        return slots

    def hidden(self, slots: Tensor, count: int) -> Tensor:
        """BOOL [R, count]: which of the first `count` slots these `slots` [R] do not see."""
        return torch.arange(count, device=slots.device) > slots[:, None]


class _Sight:
    """The bias of attention, 0 or -inf over the first `count` slots, made for so many rows as are looked at."""

    def __init__(self, cache: DraftCache, slots: Tensor, count: int):
        self._cache, self._slots, self._count = cache, slots, count

    def __getitem__(self, rows: Tensor | slice) -> "_Sight":
        return _Sight(self._cache, self._slots[rows], self._count)

    def bias(self) -> Tensor:
        hidden = self._cache.hidden(self._slots, self._count)
        return torch.zeros(hidden.shape, device=hidden.device).masked_fill_(hidden, float("-inf"))


class _Layers(DraftLayers):
    """Attention of as many rows at once as SCORES allow: a replay of 32,768 tokens by 64 heads has 69 billion scores."""

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor, bias: Any, chain: Sequence[KeyValue]) -> Tensor:
        size = max(1, SCORES // (self.shape.num_heads * len(keys)))
        blocks = [slice(start, start + size) for start in range(0, len(queries), size)]
        parts = [[(k[block], v[block]) for k, v in chain] for block in blocks]
        done = [
            super(_Layers, self)._attend(queries[block], keys, values, bias[block].bias(), part)
            for block, part in zip(blocks, parts, strict=True)
        ]
        return done[0] if len(done) == 1 else torch.cat(done)


class DraftRunner:
    """A draft that proposes.

    Parameters: `config` as in a draft's config.json, `tensors` under speculators' names (d2t too, unless the
    vocabularies are equal). Gives the drafts that speculators' Eagle3DraftModel gives on its own predictions.
    UserError: a tensor is missing or has another shape.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ):
        self.shape = DraftShape.from_config(config)
        self.device, self.dtype = torch.device(device), dtype
        missing = sorted(self.shape.tensor_names() - set(tensors))
        if missing:
            raise UserError(f"The draft lacks {', '.join(missing[:4])}; export it again.")
        weights = {name: tensors[name].detach().to(self.device, dtype) for name in self.shape.tensor_names()}
        self._layers = _Layers(self.shape, weights)
        self.targets = torch.arange(self.shape.draft_vocab_size)
        if self.shape.draft_vocab_size != self.shape.vocab_size:
            if "d2t" not in tensors:
                raise UserError("The draft's vocabulary is smaller than the verifier's but it has no d2t; export it again.")
            self.targets = self.targets + tensors["d2t"].cpu()
        self.targets = self.targets.to(self.device)

    @classmethod
    def load(
        cls,
        directory: str | os.PathLike[str],
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        replace: Mapping[str, Tensor] | None = None,
    ) -> Self:
        """From a speculators-format directory; `replace` puts tensors in place of its own (an untrained draft's).

        UserError: files that are missing or not a draft's.
        """
        path = Path(directory) / "config.json"
        try:
            with open(path, encoding="utf-8") as file:
                config = json.load(file)
            DraftShape.from_config(config)
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}); give a draft's directory.") from error
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} does not describe an EAGLE-3 draft that runs here ({error}).") from error
        with TensorFile(Path(directory) / "model.safetensors") as weights:
            tensors = read_tensors(weights)
        return cls(config, {**tensors, **(replace or {})}, device, dtype)

    def new_cache(self, capacity: int) -> DraftCache:
        """An empty cache for `capacity` verified indices of one sequence."""
        return DraftCache(self.shape, capacity, self.device, self.dtype)

    @torch.no_grad()
    def feed(self, aux: Tensor, next_tokens: Sequence[int] | Tensor, cache: DraftCache, rows: Tensor | None = None) -> Tensor:
        """Appends S verified tokens: aux [S, n · H], their auxiliary states, and the token that FOLLOWS each, [S].

        Gives the states at `rows` ([R] within these S; None: the last alone), [R, H], for `propose`.
        """
        tokens = torch.as_tensor(next_tokens, dtype=torch.int64, device=self.device)
        slots = torch.arange(cache.length, cache.length + len(tokens), device=self.device)
        if rows is None:
            rows = torch.tensor([len(tokens) - 1], device=self.device)
        aux = aux.to(self.device, self.dtype)
        seen = _Sight(cache, slots, cache.length + len(tokens))
        hidden = self._layers.first_step(tokens, aux, cache.indices(slots) + 1, cache, seen, rows.to(self.device))
        cache.length += len(tokens)
        return hidden

    @torch.no_grad()
    def propose(self, hidden: Tensor, slots: Tensor, k: int, cache: DraftCache, choose: Choose = likeliest) -> Tensor:
        """Chains of `k` tokens, [R, k] int64 in the TARGET vocabulary, from the states [R, H] that `feed` gave at the verified
        `slots` [R] of the cache. The cache stays as it is. `choose` gives draft ids from a step's logits."""
        chains = [
            self._propose(hidden[i : i + PROPOSE_ROWS], slots[i : i + PROPOSE_ROWS].to(self.device), k, cache, choose)
            for i in range(0, len(hidden), PROPOSE_ROWS)
        ]
        return torch.cat(chains) if chains else torch.zeros((0, k), dtype=torch.int64, device=self.device)

    def _propose(self, hidden: Tensor, slots: Tensor, k: int, cache: DraftCache, choose: Choose) -> Tensor:
        seen, indices = _Sight(cache, slots, cache.length), cache.indices(slots)
        chain = self._layers.new_chain()
        proposals: list[Tensor] = []
        for step in range(k):
            if step > 0:
                hidden = self._layers.chain_step(proposals[-1], hidden, indices + 1 + step, cache, seen, chain)
            normed, hidden = self._layers.read_out(hidden)
            proposals.append(self.targets[choose(self._layers.logits(normed), self.targets)])
        return torch.stack(proposals, dim=1)
