"""What deepseek.py's forward needs of memory, part by part: on a CPU, and on a GPU without the fused kernels.

At K2.5's sizes in float32 (b = 4 bytes an element), T tokens in a pass, t in its largest shard, s in its longest sample;
a CPU's chunks are 4,096 tokens and its spans 2,048, a GPU's 65,536 and 32,768 (GB = 10⁹ bytes):
- two layers as they are held, 2 · 10.1 GB (experts stay packed), and one layer's experts unpacked, 67.6 GB;
- a token of the pass: 28,672 B of residual stream, 256 B of positions;
- on a GPU, states on their way out, as in device_memory.py;
- attention of a span, max(2,048, s) tokens: heads · (2 · qk + 2 · v) · b = 164 kB a token, and of its longest sample
  197 kB for values as wide as keys: 0.7 GB; 11.8 GB for a sample of 32k, 47 GB for one of 128k;
- routed products of a chunk: normed rows and the experts' outputs, 258 kB a token, and the rows of 48 experts, 90 kB (twice
  their share, for routing is uneven), or the float32 sum and what is added to it, 86 kB: 1.4 GB on a CPU, 22.8 GB on a GPU;
- while a layer is unpacked, 48 experts' matrices twice over in the scales' dtype: 2.8 GB.
The last three take turns. Tests compare a CPU's passes in float32: they take 0.84 to 0.94 of what is said here. Not measured:
a GPU; and what a CPU's library keeps besides in bf16, 0.5 GB in one case.
"""

from collections.abc import Sequence

from kimi_adapters.chunk_sizes import Sizes
from kimi_adapters.deepseek_config import DeepseekConfig
from kimi_adapters.pass_memory import Need

STORED = 2  # bytes of a value that is stored unpacked, and of an INT4 group's scale


def need(
    config: DeepseekConfig, sizes: Sizes, shards: Sequence[int], longest: int, layer_bytes: int, held_bytes: int, item: int
) -> Need:
    """What a pass over shards of those tokens needs with `layer_bytes` of layers there; `longest` sample, `item` bytes b."""
    c, tokens, largest = config, sum(shards), max(shards, default=0)
    experts = c.num_experts * 3 * c.hidden_size * c.expert_size
    unpacked = experts * item if c.quantization else 0
    arriving = experts * 2 // 3 * STORED if not c.quantization and item != STORED else 0
    state = c.hidden_size * item
    layers = layer_bytes + unpacked + arriving
    span, sample = min(max(sizes.span, longest), largest), min(longest, largest)
    return Need(
        layers=layers,
        streams=tokens * (state + 8 * c.qk_rope_head_dim // 2),
        output=max(min(held_bytes, 3 * tokens * state), largest * state) if held_bytes else 0,
        work=max(
            _attention(c, span, sample, min(sizes.tokens, span), item),
            min(sizes.expert_tokens, largest) * _mixture(c, sizes.experts, item),
            min(sizes.tokens, largest) * (item * (2 * c.hidden_size + 4 * c.intermediate_size) + 8 * c.hidden_size),
            _unpacking(c, sizes.experts, unpacked),
            _embedding(c, largest) - layers,
        ),
    )


def _attention(c: DeepseekConfig, span: int, sample: int, chunk: int, item: int) -> int:
    """Queries, keys and values of a span; then either a chunk's projections, or the outputs and one sample's call."""
    heads, wide = c.num_heads, max(c.qk_head_dim, c.v_head_dim)
    projected = heads * (3 * c.qk_head_dim + c.qk_nope_head_dim + c.v_head_dim) * item + 12 * heads * c.qk_rope_head_dim
    normed = 3 * 4 * c.hidden_size
    called = span * heads * c.v_head_dim * item + sample * heads * 2 * wide * item
    spread = span * heads * (2 * c.qk_head_dim + c.v_head_dim) * item
    return spread + max(chunk * max(projected, normed), called, chunk * 2 * c.hidden_size * item)


def _mixture(c: DeepseekConfig, together: int, item: int) -> int:
    """Bytes a token of a chunk: normed rows, places and outputs of k rows, and a group's rows or the sum; or the routing."""
    k, hidden, width = c.experts_per_token, c.hidden_size, c.expert_size
    share = min(1.0, 2 * together / c.num_experts)
    group = int(share * k * (max(hidden, 2 * width) + 2 * width)) * item
    summing = 4 * hidden * (2 if item == 4 else 3) + item * hidden
    routed = item * hidden + 40 * k + k * hidden * item + max(group, summing)
    return max(routed, hidden * (item + 12), hidden * (item + 4) + 16 * c.num_experts)


def _unpacking(c: DeepseekConfig, together: int, unpacked: int) -> int:
    """A group's values and their product with the scales, twice for gate and up, while `down` has no memory yet."""
    if not unpacked:
        return 0
    down = 2 * STORED * min(together, c.num_experts) * c.hidden_size * c.expert_size
    return max(down, 2 * down - unpacked // 3)


def _embedding(c: DeepseekConfig, largest: int) -> int:
    """The table and a shard's rows of it, when no layer is there."""
    return c.hidden_size * STORED * (c.vocab_size + largest) + 8 * largest
