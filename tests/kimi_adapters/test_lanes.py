"""How a shard is cut: whole samples, nothing twice, nothing left out."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from kimi_adapters.chunk_sizes import Sizes
from kimi_adapters.lanes import Lane, ShardTokens, pieces, positions, sample_bounds


@given(st.lists(st.integers(0, 40), max_size=20), st.integers(1, 60), st.integers(1, 60))
def test_spans_hold_whole_samples_up_to_their_size(lengths: list[int], tokens: int, span: int) -> None:
    shard = ShardTokens(torch.zeros(sum(lengths), dtype=torch.int64), torch.tensor([0, *lengths]).cumsum(0))
    samples = sample_bounds(0, shard, 1)
    assert [end - start for start, end in samples] == [length for length in lengths if length]
    assert positions(samples).tolist() == [place for length in lengths for place in range(length)]
    empty = torch.zeros(0)
    lane = Lane(0, sum(lengths), samples, Sizes(tokens, 7, span, 1), empty, empty)
    spans = list(lane.spans())
    assert [sample for one in spans for sample in one.samples] == list(samples)
    for one in spans:
        assert (one.start, one.end) == (one.samples[0][0], one.samples[-1][1])
        assert one.end - one.start <= span or len(one.samples) == 1
    for one, following in zip(spans, spans[1:], strict=False):
        assert following.samples[0][1] - one.start > span, "a sample more would have fitted"
    rows = [row for chunk in lane.chunks() for row in range(chunk.start, chunk.stop)]
    assert rows == list(range(sum(lengths)))
    assert all(chunk.stop - chunk.start <= 7 for chunk in lane.expert_chunks())
    assert pieces(3, 3, 5) == []
