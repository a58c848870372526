"""The Llama forward, our own: the pieces of a layer, as extraction and decoding put them together.

Sums of norms are taken in float32 whatever the weights' dtype. Formulas: transformers' modeling_llama.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kimi_adapters.layers import linear, rms_norm, swiglu
from kimi_adapters.llama_config import LlamaConfig
from kimi_adapters.llama_rope import apply_rope


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


def project_qkv(layer: LayerWeights, config: LlamaConfig, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The attention's inputs of the residual stream x [..., hidden]: q [..., heads, D], k and v [..., kv_heads, D]."""
    normed = rms_norm(x, layer.input_norm, config.rms_norm_eps)
    heads = linear(normed, layer.qkv, layer.qkv_bias).unflatten(-1, (-1, config.head_dim))
    rotated = config.num_heads + config.num_kv_heads
    qk = apply_rope(heads[..., :rotated, :], cos, sin)
    return qk[..., : config.num_heads, :], qk[..., config.num_heads :, :], heads[..., rotated:, :]


def finish_layer(layer: LayerWeights, config: LlamaConfig, x: Tensor, attended: Tensor) -> Tensor:
    """The residual stream [..., hidden] that leaves the layer, from the one that entered and the heads' outputs
    [..., heads · D]: output projection, then the SwiGLU block."""
    x = x + linear(attended, layer.output, layer.output_bias)
    normed = rms_norm(x, layer.mlp_norm, config.rms_norm_eps)
    inner = swiglu(linear(normed, layer.gate_up, layer.gate_up_bias))
    return x + linear(inner, layer.down, layer.down_bias)
