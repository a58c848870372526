"""The bf16 forward and the transport on an NVIDIA GPU; test_deepseek.py has more of the forward, on tiny widths."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kimi_adapters import pinned_reader, tiny_checkpoint
from kimi_adapters.tiny_checkpoint import make
from kimi_adapters.tiny_config import Options, config_values
from kimi_adapters.weights import Checkpoint
from tests.kimi_adapters.deepseek_fixtures import ours, samples_of, shard_of, theirs, transformers_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")]


def test_whole_tiles_are_no_worse_than_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Widths at which every product goes through our own kernels."""
    wide = {"hidden_size": 512, "moe_intermediate_size": 256, "intermediate_size": 512}
    wide |= {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}

    def values(options: Options) -> dict[str, Any]:
        given = config_values(options)
        given["text_config"] |= wide
        return given

    monkeypatch.setattr(tiny_checkpoint, "config_values", values)
    make(tmp_path)
    shard = shard_of([700, 90, 1500, 33], 1280, 5)
    (reference,) = ours([shard], tmp_path, [1, 2, 4, 6])
    (states,) = ours([shard], tmp_path, [1, 2, 4, 6], device="cuda", compute_dtype=torch.bfloat16)
    model = transformers_model(tmp_path, torch.bfloat16).to("cuda")
    samples = [theirs(model, ids.to("cuda"), [1, 2, 4, 6]) for ids in samples_of(shard)]
    for name, exact in reference.items():
        peer = torch.cat([sample[name] for sample in samples]).float().cpu()
        off, peer_off = ((found.float() - exact).norm() / exact.norm() for found in (states[name], peer))
        print(name, float(off), float(peer_off))
        assert off <= 1.1 * peer_off, name


def test_layers_come_whole_through_small_buffers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors are cut over many buffers, and more pieces wait than there are buffers."""
    monkeypatch.setattr(pinned_reader, "BUFFER_BYTES", 10_000)
    monkeypatch.setattr(pinned_reader, "BUFFERS", 3)
    make(tmp_path)
    checkpoint, device = Checkpoint(tmp_path), torch.device("cuda")
    with pinned_reader.PinnedReader(device) as reader:
        pinned = pinned_reader.PinnedCheckpoint(checkpoint, reader)
        for name in checkpoint.names:
            with torch.cuda.stream(reader.stream):
                found = pinned.read(name, None, device)
            reader.stream.synchronize()
            assert torch.equal(found.cpu(), checkpoint.read(name)), name


def test_an_error_of_a_sink_comes_out(tmp_path: Path) -> None:
    from kimi_adapters.layer_stream import stream_states

    make(tmp_path)

    def full(shard: int, name: str, chunk: Tensor) -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        stream_states([shard_of([50], 1280, 0)], Checkpoint(tmp_path), [1], full, device="cuda", compute_dtype=torch.bfloat16)


def test_passes_that_overlap_give_the_same_states(tmp_path: Path) -> None:
    from kimi_adapters.gpu_transport import GpuTransport
    from kimi_adapters.layer_stream import stream_states

    make(tmp_path)
    options = {"device": "cuda", "compute_dtype": torch.bfloat16, "state_dtype": torch.bfloat16}
    shards = [shard_of([100, 30, 400], 1280, seed) for seed in range(6)]
    alone = [ours([shard], tmp_path, [1, 3], **options)[0] for shard in shards]
    checkpoint, device = Checkpoint(tmp_path), torch.device("cuda")
    told: list[int] = []
    found: dict[tuple[int, str], list[Tensor]] = {}
    with GpuTransport(checkpoint, device, held_bytes=100_000) as transport:
        for start in (0, 3):

            def sink(shard: int, name: str, chunk: Tensor, start: int = start) -> None:
                found.setdefault((start + shard, name), []).append(chunk.clone())

            stream_states(shards[start : start + 3], checkpoint, [1, 3], sink, transport=transport, **options)  # type: ignore[arg-type]
            transport.then(lambda start=start: told.append(start))  # type: ignore[misc]
        transport.finish()
    assert told == [0, 3]
    for number, states in enumerate(alone):
        assert all(torch.equal(torch.cat(found[number, name]), states[name]) for name in states)
