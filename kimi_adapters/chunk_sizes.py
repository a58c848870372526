"""Rows that go through at once: constants of the code, one set a kind of device, never taken from a device's memory.

A shard's bytes depend on them.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """Rows that go through at once: `tokens` of dense products, `expert_tokens` of routed ones, `span` of attention.

    `experts` are multiplied together, and unpacked together.
    """

    tokens: int
    expert_tokens: int
    span: int
    experts: int


# Products of 512 rows run at the rate of large ones on a CPU, and keep their temporaries (6 MB for SmolLM2) in its cache.
CPU = Sizes(tokens=512, expert_tokens=4096, span=2048, experts=48)
# 65,536 tokens with 8 of 384 experts are 1,365 rows an expert: tiles of 128 rows then waste 5% at their ends, at 32,768 9%.
CUDA = Sizes(tokens=32768, expert_tokens=65536, span=32768, experts=48)
