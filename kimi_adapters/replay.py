"""Replay: the walk over all samples of a side of a set of shards. No part of training's key (see `walk`)."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from kimi_adapters.acceptance_length import Acceptance
from kimi_adapters.draft_runner import DraftRunner
from kimi_adapters.packing import Shard, ShardFiles
from kimi_adapters.walk import walk_sample


def walk_shards(
    draft: DraftRunner,
    shards: Sequence[ShardFiles],
    k: int,
    quarantine: Mapping[int, Collection[int]] | None = None,
    side: str = "held_out",
) -> Iterator[tuple[int, int, Acceptance]]:
    """(shard, sample, its walk) for every sample of a side that is not quarantined. UserError: files that differ."""
    for number, files in enumerate(shards):
        shard = Shard(files, draft.shape.layer_ids)
        for sample, its_side in enumerate(shard.sides):
            if its_side == side and sample not in (quarantine or {}).get(number, ()):
                yield number, sample, walk_sample(draft, shard, sample, k)
