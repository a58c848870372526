"""The WALK over one recorded text: what draft-and-verify would do, without running the verifier.

Start at an answer's first token (in decoding, the prefill gives it), propose k tokens by the draft's own chain, count
the matches with the recorded tokens, jump past them and the bonus token, repeat. On the verifier's own greedy text
and its float32 states this is what `decoding.decode` does; on other text, or on states in bfloat16, an estimate.

Training chooses its checkpoint by this, so an edit here trains again; how shards are gone through and reported
(`replay`, `acceptance_interval`) is no part of that choice.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kimi_adapters.acceptance_length import Acceptance, leading_matches
from kimi_adapters.draft_runner import DraftRunner
from kimi_adapters.packing import Shard


def walk(draft: DraftRunner, tokens: Sequence[int], mask: Sequence[bool], aux: Tensor, k: int) -> Acceptance:
    """The walk over every answer of one sample.

    Parameters: tokens [T]; mask [T], true on answer tokens, each run of them one answer; aux [T, n · H], the
    auxiliary states. The chains of all positions are computed at once, with the draft's own predictions in them.
    """
    answers = answers_of(mask)
    starts = [index for first, end in answers for index in range(first, end - 1)]
    proposals: dict[int, list[int]] = {}
    if starts:
        cache = draft.new_cache(len(tokens) - 1)
        rows = torch.tensor(starts, device=draft.device) - 1
        hidden = draft.feed(aux[:-1], tokens[1:], cache, rows)
        chains = draft.propose(hidden, rows, k, cache).tolist()
        proposals = dict(zip(starts, chains, strict=True))
    accepted = [0] * k
    emitted = steps = 0
    for first, end in answers:
        known = first  # index of the last token that is known
        while known < end - 1:
            truth = tokens[known + 1 : end]
            matches = leading_matches(proposals[known], truth)
            for place in range(matches):
                accepted[place] += 1
            advance = min(matches + 1, len(truth))
            known, emitted, steps = known + advance, emitted + advance, steps + 1
    return Acceptance(emitted, steps, tuple(accepted))


def walk_sample(draft: DraftRunner, shard: Shard, sample: int, k: int) -> Acceptance:
    """The walk over one sample of a shard, on its stored states."""
    start, stop = int(shard.offsets[sample]), int(shard.offsets[sample + 1])
    aux = torch.cat([shard.state(name, start, stop) for name in shard.state_names[:-1]], dim=-1)
    tokens, mask = shard.input_ids[start:stop].tolist(), shard.loss_mask[start:stop].tolist()
    return walk(draft, tokens, mask, aux, k)


def answers_of(mask: Sequence[bool]) -> list[tuple[int, int]]:
    """[first, end) of every run of true values that has something before it."""
    edges = [i for i in range(1, len(mask) + 1) if bool(i < len(mask) and mask[i]) != bool(mask[i - 1])]
    first_run = edges[1:] if len(mask) and mask[0] else edges
    return list(zip(first_run[::2], first_run[1::2], strict=True))
