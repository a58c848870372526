"""The draft's arithmetic in training on a GPU: products in bfloat16, norms and residuals in float32, as autocast has them.

What differs from `DraftLayers` is speed: weights are cast once while they stand, the gradient of each is one product a pack
(`deferred_linear`), attention is flex attention's (`rows_attention`), and what is no product is compiled.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from kimi_adapters.deferred_linear import Uses, linear
from kimi_adapters.draft_layers import DraftLayers, DraftShape, KeyValue
from kimi_adapters.rows_attention import Sight, attend


class Copies:
    """Parameters in the dtype of the products, each cast once; those that are trained must not change meanwhile.

    `frozen` keeps the copies of those that are not, for the next one.
    """

    def __init__(self, dtype: torch.dtype, frozen: dict[str, Tensor] | None = None):
        self.dtype = dtype
        self._frozen: dict[str, Tensor] = {} if frozen is None else frozen
        self._trained: dict[str, Tensor] = {}

    def of(self, name: str, parameter: Tensor) -> Tensor:
        """The copy of a parameter."""
        kept = self._trained if parameter.requires_grad else self._frozen
        if name not in kept:
            kept[name] = parameter.detach().to(self.dtype)
        return kept[name]


def compiled_on_gpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled where its first argument is on a GPU."""
    fast = torch.compile(function)

    @wraps(function)
    def called(*arguments: Any) -> Any:
        return (fast if arguments[0].is_cuda else function)(*arguments)

    return called


@compiled_on_gpu
def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """RMSNorm (Zhang and Sennrich 2019) over the last dimension, float32."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon))


@compiled_on_gpu
def rotary(x: Tensor, positions: Tensor, frequencies: Tensor, stretch: float) -> Tensor:
    """Rotary positions on [R, heads, d] (Su et al. 2021, halves as in Hugging Face's Llama), in float32."""
    angles = positions.float()[:, None, None] * frequencies
    cos, sin = angles.cos() * stretch, angles.sin() * stretch
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


@compiled_on_gpu
def gated(gate: Tensor, up: Tensor) -> Tensor:
    """SwiGLU (Shazeer 2020), in float32 between."""
    return (torch.nn.functional.silu(gate.float()) * up.float()).to(gate.dtype)


@compiled_on_gpu
def beside(embeds: Tensor, hidden: Tensor, embed_weight: Tensor, hidden_weight: Tensor, epsilon: float, like: Tensor) -> Any:
    """(normed embedding and normed state side by side in the dtype of `like`, the normed state in float32)."""
    normed = rms_norm.__wrapped__(hidden, hidden_weight, epsilon)  # type: ignore[attr-defined]
    first = rms_norm.__wrapped__(embeds, embed_weight, epsilon)  # type: ignore[attr-defined]
    return torch.cat([first.to(like.dtype), normed.to(like.dtype)], dim=-1), normed


class GpuLayers(DraftLayers):
    """One pack's: `weights` are the model's parameters, `copies` what they are multiplied as."""

    row_block = 128  # flex attention's: rows come in so many

    def __init__(self, shape: DraftShape, weights: Mapping[str, Tensor], copies: Copies):
        super().__init__(shape, weights)
        self.copies = copies
        self._uses: defaultdict[str, Uses] = defaultdict(Uses)

    def sight(self, documents: Tensor) -> Any:
        """Of all indices."""
        return Sight(documents, torch.arange(len(documents), device=documents.device))

    def _layer_input(self, layer: int, embeds: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        if layer > 0:
            return super()._layer_input(layer, embeds, hidden)
        names = ("layers.0.input_layernorm.weight", "layers.0.hidden_norm.weight")
        like = self.copies.of("fc.weight", self.weights["fc.weight"])
        both, normed = beside(embeds, hidden, *(self.weights[name] for name in names), self.shape.rms_norm_eps, like)
        return both, normed if self.shape.norm_before_residual else hidden

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor, bias: Any, chain: Sequence[KeyValue]) -> Tensor:
        return attend(queries, keys, values, bias, [keys for keys, _ in chain], [values for _, values in chain])

    def _gated(self, gate: Tensor, up: Tensor) -> Tensor:
        product: Tensor = gated(gate, up)
        return product

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        turned: Tensor = rotary(x, positions, self._frequencies, self._stretch)
        return turned

    def _norm(self, name: str, x: Tensor) -> Tensor:
        normed: Tensor = rms_norm(x, self.weights[f"{name}.weight"], self.shape.rms_norm_eps)
        return normed

    def _head_norm(self, name: str, x: Tensor) -> Tensor:
        return super()._head_norm(name, x).to(x.dtype)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        name = f"{name}.weight"
        return linear(x, self.weights[name], self.copies.of(name, self.weights[name]), self._uses[name])
