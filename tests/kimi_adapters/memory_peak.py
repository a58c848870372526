"""A pass in a process of its own: prints the bytes that it needs by the arithmetic, and those that it took at the peak.

    python -m tests.kimi_adapters.memory_peak CHECKPOINT LENGTHS…

LENGTHS are the samples of a shard, "512,512", an argument a shard.
"""

import sys
from pathlib import Path

import torch

from kimi_adapters.deepseek import DeepseekForward
from kimi_adapters.deepseek_config import DeepseekConfig
from kimi_adapters.lanes import ShardTokens
from kimi_adapters.layer_stream import stream_states
from kimi_adapters.pass_memory import layer_bytes
from kimi_adapters.weights import Checkpoint


def resident(field: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM at the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def shard(lengths: list[int], vocabulary: int) -> ShardTokens:
    """Random tokens in samples of those lengths."""
    return ShardTokens(torch.randint(0, vocabulary, (sum(lengths),)), torch.tensor([0, *lengths]).cumsum(0))


def main(folder: str, *given: str) -> None:
    """One pass in float32; a tiny one before it, for libraries are loaded by use."""
    torch.set_num_threads(1)
    checkpoint, lengths = Checkpoint(folder), [[int(length) for length in one.split(",")] for one in given]
    config = checkpoint.config
    assert isinstance(config, DeepseekConfig)
    stream_states([shard([8], 8)], checkpoint, [0], lambda *chunk: None)
    shards = [shard(one, config.vocab_size) for one in lengths]
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = resident("VmRSS")
    stream_states(shards, checkpoint, [0], lambda *chunk: None)
    forward = DeepseekForward(config, torch.device("cpu"), torch.float32)
    layers, longest = 2 * layer_bytes(config, 4).largest, max(max(one) for one in lengths)
    print(forward.need([sum(one) for one in lengths], longest, layers, 0).total, resident("VmHWM") - before)


if __name__ == "__main__":
    main(*sys.argv[1:])
