"""Shards of a verifier's own answers with its own states, for tests that train a draft which is right sometimes."""

from collections.abc import Sequence
from pathlib import Path

import torch

from kimi_adapters.packing import ShardFiles
from kimi_adapters.verifier import Verifier
from tests.kimi_adapters.draft_fixtures import Sample, write_shard


def heard(folder: Path, verifier: Verifier, made: Sequence[Sample], layer_ids: Sequence[int]) -> ShardFiles:
    """A shard of samples with the states that the verifier has over them."""
    states: dict[str, list[torch.Tensor]] = {name: [] for name in (*(f"layer.{k}" for k in layer_ids), "last")}
    for ids, _, _ in made:
        step = verifier.forward(torch.tensor([ids]), verifier.new_cache(1, len(ids)), list(layer_ids))
        for k, part in zip(layer_ids, step.aux[0].chunk(len(layer_ids), dim=-1), strict=True):
            states[f"layer.{k}"].append(part)
        states["last"].append(step.last[0])
    return write_shard(folder, made, {name: torch.cat(parts) for name, parts in states.items()})
