"""Multi-head latent attention: queries, keys and values come out of narrow latents.

Formulas: https://arxiv.org/abs/2412.19437, section 2.1.1, and transformers' modeling_deepseek_v3.py, whose norms of
the latents take 1e-6 whatever rms_norm_eps says (as the code published with the checkpoints does; vLLM and SGLang
take rms_norm_eps there).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kimi_adapters.deepseek_config import DeepseekConfig
from kimi_adapters.device_paths import causal_attention
from kimi_adapters.lanes import Lane, Span, pieces
from kimi_adapters.layers import linear, rms_norm
from kimi_adapters.yarn import rotate_pairs

LATENT_NORM_EPS = 1e-6


@dataclass(frozen=True)
class Attention:
    """Weights [out, in]. `down` gives the queries' latent (the queries themselves where there is none), the latent of
    keys and values and the shared rotary key, side by side: one product in place of two."""

    norm: Tensor
    down: Tensor
    down_bias: Tensor | None
    q_norm: Tensor | None
    q_up: Tensor | None
    kv_norm: Tensor
    kv_up: Tensor
    output: Tensor
    output_bias: Tensor | None


def pack_attention(tensors: Mapping[str, Tensor]) -> Attention:
    """Attention from a checkpoint's names inside a layer."""
    first = "self_attn.q_a_proj" if "self_attn.q_a_proj.weight" in tensors else "self_attn.q_proj"
    names = (first, "self_attn.kv_a_proj_with_mqa")
    down = [tensors[f"{name}.weight"] for name in names]
    biases = [tensors.get(f"{name}.bias") for name in names]
    joined = None
    if any(bias is not None for bias in biases):
        joined = torch.cat([w.new_zeros(len(w)) if b is None else b for w, b in zip(down, biases, strict=True)])
    return Attention(
        norm=tensors["input_layernorm.weight"],
        down=torch.cat(down),
        down_bias=joined,
        q_norm=tensors.get("self_attn.q_a_layernorm.weight"),
        q_up=tensors.get("self_attn.q_b_proj.weight"),
        kv_norm=tensors["self_attn.kv_a_layernorm.weight"],
        kv_up=tensors["self_attn.kv_b_proj.weight"],
        output=tensors["self_attn.o_proj.weight"],
        output_bias=tensors.get("self_attn.o_proj.bias"),
    )


def attend(weights: Attention, config: DeepseekConfig, lane: Lane, stream: Tensor) -> None:
    """Adds the attention's output to the residual stream [T, hidden] of a shard, span by span."""
    for span in lane.spans():
        _attend_span(weights, config, lane, span, stream)


def _attend_span(weights: Attention, config: DeepseekConfig, lane: Lane, span: Span, stream: Tensor) -> None:
    """Keys and values of a span only are ever spread out: (2 · qk + 2 · v) · heads elements a token."""
    length, heads = span.end - span.start, config.num_heads
    q = stream.new_empty(length, heads, config.qk_head_dim)
    k = torch.empty_like(q)
    v = stream.new_empty(length, heads, config.v_head_dim)
    chunks = [
        (rows, slice(rows.start - span.start, rows.stop - span.start))
        for rows in pieces(span.start, span.end, lane.sizes.tokens)
    ]
    for rows, here in chunks:
        q[here], k[here], v[here] = _project(weights, config, stream[rows], lane.cos[rows], lane.sin[rows])
    attended = torch.empty_like(v)
    for start, end in span.samples:
        one = slice(start - span.start, end - span.start)
        attended[one] = causal_attention(q[one], k[one], v[one], config.softmax_scale)
    for rows, here in chunks:
        stream[rows] += linear(attended[here].flatten(1), weights.output, weights.output_bias)


def _project(weights: Attention, config: DeepseekConfig, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k [t, heads, qk] and v [t, heads, v] of the residual stream x [t, hidden]."""
    lower = linear(rms_norm(x, weights.norm, config.rms_norm_eps), weights.down, weights.down_bias)
    narrow = [config.kv_lora_rank, config.qk_rope_head_dim]
    q, latent, shared_key = lower.split([lower.shape[-1] - sum(narrow), *narrow], dim=-1)
    if weights.q_up is not None and weights.q_norm is not None:
        q = linear(rms_norm(q, weights.q_norm, LATENT_NORM_EPS), weights.q_up)
    q = q.unflatten(-1, (config.num_heads, config.qk_head_dim))
    kv = linear(rms_norm(latent, weights.kv_norm, LATENT_NORM_EPS), weights.kv_up)
    kv = kv.unflatten(-1, (config.num_heads, config.qk_nope_head_dim + config.v_head_dim))
    plain_q, turned_q = q.split([config.qk_nope_head_dim, config.qk_rope_head_dim], dim=-1)
    plain_k, v = kv.split([config.qk_nope_head_dim, config.v_head_dim], dim=-1)
    turned_k = rotate_pairs(shared_key[:, None], cos, sin).expand(-1, config.num_heads, -1)
    q = torch.cat([plain_q, rotate_pairs(turned_q, cos, sin)], dim=-1)
    return q, torch.cat([plain_k, turned_k], dim=-1), v
