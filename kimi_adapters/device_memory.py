"""What deepseek_fused needs of an NVIDIA GPU's memory, part by part; whether that fits, pass_memory says.

At K2.5's sizes, T tokens in a pass, t in its largest shard, s in its longest sample (GB = 10⁹ bytes):
- two layers as they are stored, 2 · 9.8 GB, and one layer's experts unpacked, 33.8 GB;
- a token of the pass: 14,336 B of residual stream, 256 B of positions;
- states on their way out, 14,336 B a token and state: three of the pass about its last layer, held_bytes at most, one
  of a shard at least;
- attention of a span, max(32,768, s) tokens: 137 kB a token = 4.5 GB; 18 GB for a sample of 128k;
- routed products of a chunk, min(65,536, t) tokens: 178 kB a token = 11.7 GB. Attention and products take turns.
Two shards of 131,072 tokens: 78 GB, 76.5 measured; three, with twice the held_bytes: 88 GB, 84.0 measured. On the host,
pinned: 0.8 GB for layers and 59 MB for states.
"""

from collections.abc import Sequence

from kimi_adapters.chunk_sizes import Sizes
from kimi_adapters.deepseek_config import DeepseekConfig
from kimi_adapters.pass_memory import Need

B = 2  # bytes of a bf16
# States that may wait: two of 262,144 tokens of K2.5 in bf16, what the last layers of a pass give within two seconds.
HELD_BYTES = 8 << 30


def need(config: DeepseekConfig, sizes: Sizes, shards: Sequence[int], longest: int, layer_bytes: int, held_bytes: int) -> Need:
    """What a pass over shards of those tokens needs; `longest` sample, `layer_bytes` of the stored layers that are there."""
    c, tokens = config, sum(shards)
    largest = max(shards, default=0)
    experts = c.num_experts * 3 * c.hidden_size * c.expert_size * B if c.quantization else 0
    state = c.hidden_size * B
    return Need(
        layers=layer_bytes + experts,
        streams=tokens * (state + 8 * c.qk_rope_head_dim // 2),
        output=max(min(held_bytes, 3 * tokens * state), largest * state),
        work=max(
            min(max(sizes.span, longest), largest) * _attention(c),
            min(sizes.expert_tokens, largest) * _mixture(c),
            min(sizes.tokens, largest) * B * (2 * c.hidden_size + 3 * c.intermediate_size),
        ),
    )


def _attention(c: DeepseekConfig) -> int:
    """Bytes a token of a span: normed rows, latents, queries and keys, keys and values, the heads' outputs twice."""
    latents = 2 * ((c.q_lora_rank or c.num_heads * c.qk_head_dim) + c.kv_lora_rank) + c.qk_rope_head_dim
    heads = c.num_heads * (2 * c.qk_head_dim + c.qk_nope_head_dim + 3 * c.v_head_dim)
    return B * (c.hidden_size + latents + heads)


def _mixture(c: DeepseekConfig) -> int:
    """Bytes a token of a chunk: normed rows and the shared expert's, logits, and k rows inside and in, whose place
    the rows out take."""
    rows = c.experts_per_token * (c.hidden_size + c.expert_size)
    return B * (2 * c.hidden_size + rows) + 4 * c.num_experts + 16 * c.experts_per_token
