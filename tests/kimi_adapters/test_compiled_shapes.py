"""The functions that a GPU compiles, compiled on a CPU: packs of many lengths are few graphs, all made at the beginning."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from speculators.losses import resolve_loss_config
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from kimi_adapters import chunked_head, gpu_layers, rows_attention
from kimi_adapters.chunked_head import ChunkedHead
from kimi_adapters.draft import draft_shape
from kimi_adapters.gpu_layers import Copies
from kimi_adapters.packing import PackedShards
from kimi_adapters.recipe import Recipe
from kimi_adapters.ttt import ttt_loss
from tests.kimi_adapters.draft_fixtures import LAYER_IDS, Sample, write_shard
from tests.kimi_adapters.draft_models import tiny_draft
from tests.kimi_adapters.test_gpu_layers import DenseLayers

COMPILED = ("rms_norm", "rotary", "gated", "beside")


class JoinedLayers(DenseLayers):
    """Step 0's mixture as flex attention gives it, then the compiled join with the chain."""

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor, bias: Any, chain: Any) -> Tensor:
        groups = queries.shape[1] // keys.shape[1]
        keys, values = (one.repeat_interleave(groups, dim=1) for one in (keys, values))
        scores = torch.einsum("rhd,shd->rhs", queries, keys) * queries.shape[-1] ** -0.5 + bias[:, None]
        mixed = torch.einsum("rhs,shd->rhd", scores.softmax(-1), values)
        if chain:
            own = [list(one) for one in zip(*chain, strict=True)]
            mixed = rows_attention._joined(mixed, scores.logsumexp(-1), queries, *own)
        return mixed.reshape(len(queries), -1)


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Counts the graphs of these functions; what compiles them is the same, but for the backend and for where they run."""
    torch._dynamo.reset()
    counter = CompileCounter()

    def compiled(function: Any) -> Any:
        return torch.compile(getattr(function, "__wrapped__", function), backend=counter)

    for name in COMPILED:
        monkeypatch.setattr(gpu_layers, name, compiled(getattr(gpu_layers, name)))
    monkeypatch.setattr(chunked_head, "rms_norm", gpu_layers.rms_norm)
    monkeypatch.setattr(rows_attention, "_joined", compiled(rows_attention.joined))
    monkeypatch.setattr(chunked_head, "compiled_on_gpu", compiled)
    chunked_head._judge.cache_clear()
    yield counter
    chunked_head._judge.cache_clear()


@pytest.mark.parametrize("flags", [{}, {"layer": "qwen3", "num_layers": 2, "norm_output": True}, {"train_lm_head": True}])
def test_packs_of_twenty_lengths_compile_nothing_after_the_second(tmp_path: Path, counter: Any, flags: dict[str, Any]) -> None:
    """The first two are the shortest and the longest: they differ in supervised tokens and in blocks of rows."""
    made: list[Sample] = [(list(range(n)), [0] * 3 + [1] * (n - 3), "train") for n in range(8, 28)]
    data = PackedShards([write_shard(tmp_path, made)], LAYER_IDS, 32, 3)
    model = tiny_draft(Recipe(**flags))
    graphs = []
    shortest, *between, longest = sorted(data.pieces, key=len)
    for piece in (shortest, longest, *between):
        layers = JoinedLayers(draft_shape(model), dict(model.named_parameters()), Copies(torch.float32))
        loss, _ = ttt_loss(layers, data.load([piece]), 3, 1.0, ChunkedHead(layers, resolve_loss_config("kl_div", "eager")))
        loss.backward()
        graphs.append(counter.frame_count)
    assert len({len(piece) for piece in data.pieces}) == 20
    assert graphs[0] >= len(COMPILED) + 2, "each of them, the join and the judge is compiled"
    assert graphs[-1] == graphs[1], graphs
