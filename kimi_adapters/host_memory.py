"""What the DeepSeek-V3 forward needs of a host's memory on a CPU, and what is said when it is not there."""

from errors import UserError
from kimi_adapters.deepseek_config import DeepseekConfig


def check_host(
    config: DeepseekConfig, shards: list[int], layer_bytes: int, item: int, free: int, free_as: str = "are free"
) -> None:
    """UserError when `free` bytes do not do for the layers that are there, one layer's experts unpacked and the streams.

    K2.5 in float32 (`item` 4 bytes) asks for 67.6 GB of experts and 28,672 B a token of the pass.
    """
    experts = config.num_experts * 3 * config.hidden_size * config.expert_size * item if config.quantization else 0
    tokens, layers = sum(shards), layer_bytes + experts
    needed = layers + tokens * config.hidden_size * item
    if needed > free:
        raise UserError(
            f"a pass over {tokens:,} tokens in {len(shards)} shards needs {needed / 1e9:.3g} GB of host memory and "
            f"{free / 1e9:.3g} GB {free_as}; {layers / 1e9:.3g} GB are layers: lower running.shards_per_pass "
            "or running.cpu_slots, or extract on a GPU."
        )
