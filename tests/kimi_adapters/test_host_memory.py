"""Too little host memory is one sentence before a layer is read."""

from pathlib import Path
from typing import Any

import pytest
import torch

from errors import UserError
from kimi_adapters import deepseek
from kimi_adapters.lanes import ShardTokens
from kimi_adapters.layer_stream import stream_states
from kimi_adapters.tiny_checkpoint import make
from kimi_adapters.weights import Checkpoint


def test_a_pass_that_does_not_fit_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = Checkpoint(make(tmp_path))
    config: Any = checkpoint.config
    shards = [ShardTokens(torch.arange(20), torch.tensor([0, 20]))] * 2
    experts = config.num_experts * 3 * config.hidden_size * config.expert_size * 4
    needed = 2 * checkpoint.largest_layer_bytes + experts + 40 * config.hidden_size * 4
    states: list[str] = []

    def sink(shard: int, name: str, chunk: torch.Tensor) -> None:
        states.append(name)

    monkeypatch.setattr(deepseek, "free_bytes", lambda device: needed)
    stream_states(shards, checkpoint, [1], sink)
    assert states
    states.clear()
    monkeypatch.setattr(deepseek, "free_bytes", lambda device: needed - 1)
    monkeypatch.setattr(Checkpoint, "read", None)
    with pytest.raises(
        UserError, match=r"over 40 tokens in 2 shards needs .* of host memory and .* are free; .*shards_per_pass"
    ):
        stream_states(shards, checkpoint, [1], sink)
    assert not states
