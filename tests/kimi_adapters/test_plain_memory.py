"""What a pass needs of a host's memory is what it takes; too little of it is one sentence before a layer is read."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.kimi_widths import config, values, write_checkpoint
from errors import UserError
from kimi_adapters import deepseek, plain_memory
from kimi_adapters.chunk_sizes import CPU, CUDA
from kimi_adapters.device_memory import HELD_BYTES
from kimi_adapters.lanes import Lane, ShardTokens
from kimi_adapters.layer_stream import stream_states
from kimi_adapters.pass_memory import layer_bytes
from kimi_adapters.tiny_checkpoint import make
from kimi_adapters.weights import Checkpoint
from tests.projects import ROOT

PASSES: dict[str, tuple[dict[str, int], list[str]]] = {
    "experts unpacked": ({}, ["512"]),
    "routed rows": ({"num_experts_per_tok": 32}, [",".join(["512"] * 8)]),
    "a long sample": ({"n_routed_experts": 16, "num_attention_heads": 16, "num_key_value_heads": 16}, ["4096"]),
    "many shards": ({"n_routed_experts": 16, "hidden_size": 1792, "intermediate_size": 256}, ["512,512"] * 8),
}


def test_a_pass_that_does_not_fit_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = Checkpoint(make(tmp_path))
    tiny: Any = checkpoint.config
    shards = [ShardTokens(torch.arange(200), torch.tensor([0, 200]))] * 3
    layers = 2 * layer_bytes(tiny, 4).largest
    needed, two = (plain_memory.need(tiny, CPU, [200] * n, 200, layers, 0, 4).total for n in (3, 2))
    states: list[str] = []

    def sink(shard: int, name: str, chunk: torch.Tensor) -> None:
        states.append(name)

    monkeypatch.setattr(deepseek, "free_bytes", lambda device: needed)
    stream_states(shards, checkpoint, [1], sink)
    assert states
    states.clear()
    monkeypatch.setattr(Checkpoint, "read", None)
    for free, fit in ((needed - 1, 2), (two - 1, 1)):
        monkeypatch.setattr(deepseek, "free_bytes", lambda device, free=free: free)
        expected = rf"over 600 tokens in 3 shards needs .* of host memory and .* are free; set .*shards_per_pass to {fit}\."
        with pytest.raises(UserError, match=expected):
            stream_states(shards, checkpoint, [1], sink)
    assert not states


def test_a_gpu_without_the_fused_kernels_is_judged_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """K2.5 in float32 on an H200: no device is needed to say so."""
    forward = deepseek.DeepseekForward(config(), torch.device("cuda"), torch.float32)
    none: Any = torch.empty(0)
    lanes = [Lane(number, 131072, ((0, 8192),), CUDA, none, none) for number in range(4)]
    monkeypatch.setattr(deepseek, "free_bytes", lambda device: 141 * 10**9)
    assert not forward.check(none, lanes[:2], {}, HELD_BYTES), "two layers are there at a time"
    with pytest.raises(UserError, match=r"of device memory and 141.0 GB are free; set running.shards_per_pass to 2\."):
        forward.check(none, lanes, {}, HELD_BYTES)


@pytest.mark.parametrize("what", PASSES)
def test_a_pass_takes_what_the_arithmetic_says(tmp_path: Path, what: str) -> None:
    """K2.5's widths over sixteen, each pass with another part that weighs most; some 200 to 600 MB."""
    text, shards = PASSES[what]
    given = values(3, 16)
    given["text_config"] |= {"vocab_size": 1280, **text}
    write_checkpoint(tmp_path, 2, given=given)
    # Blocks go back to the system at once: what malloc keeps of them is no part of a pass.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.kimi_adapters.memory_peak", str(tmp_path), *shards]
    said = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    needed, peak = map(int, said.split())
    assert 0.8 * needed <= peak <= needed
