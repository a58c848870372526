from pathlib import Path

import pytest
import torch

from kimi_adapters.acceptance_length import Acceptance
from kimi_adapters.draft import draft_config_values
from kimi_adapters.draft_runner import DraftRunner
from kimi_adapters.replay import walk_shards
from kimi_adapters.walk import walk
from tests.kimi_adapters.draft_fixtures import VERIFIER, VOCABULARY, generator, samples, write_shard
from tests.kimi_adapters.draft_models import tiny_draft

K = 3


@pytest.fixture(scope="module")
def draft() -> DraftRunner:
    model = tiny_draft()
    return DraftRunner(draft_config_values(model.config, torch.float32), model.state_dict())


def chain_after(draft: DraftRunner, tokens: list[int], aux: torch.Tensor) -> list[int]:
    cache = draft.new_cache(len(tokens) - 1)
    hidden = draft.feed(aux[: len(tokens) - 1], tokens[1:], cache)
    found: list[int] = draft.propose(hidden, torch.tensor([len(tokens) - 2]), K, cache)[0].tolist()
    return found


def text_with(draft: DraftRunner, prompt: int, agreeing: list[int]) -> tuple[list[int], torch.Tensor]:
    """Tokens whose answer follows the draft's chain for the given numbers of tokens, then departs from it."""
    source = generator(4)
    length = prompt + 1 + sum(count + 1 for count in agreeing)
    aux = torch.randn(length, 3 * VERIFIER.hidden_size, generator=source)
    tokens = torch.randint(0, VERIFIER.vocab_size, (prompt + 1,), generator=source).tolist()
    for count in agreeing:
        chain = chain_after(draft, tokens, aux)
        wrong = next(t for t in VOCABULARY.targets().tolist() if count == K or t != chain[count])
        tokens += [*chain[:count], wrong]
    return tokens, aux


@pytest.mark.parametrize("agreeing", [[0, 0], [1, 2], [3, 0, 2, 3, 1], [3]])
def test_the_walk_counts_what_was_built_into_the_text(draft: DraftRunner, agreeing: list[int]) -> None:
    tokens, aux = text_with(draft, 5, agreeing)
    mask = [False] * 5 + [True] * (len(tokens) - 5)
    accepted = tuple(sum(count > place for count in agreeing) for place in range(K))
    expected = Acceptance(sum(agreeing) + len(agreeing), len(agreeing), accepted)
    assert walk(draft, tokens, mask, aux, K) == expected


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_what_reaches_past_the_answers_end_is_not_counted(draft: DraftRunner, kept: int) -> None:
    tokens, aux = text_with(draft, 5, [3])
    tokens, aux = tokens[: 6 + kept], aux[: 6 + kept]
    expected = Acceptance(kept, 1, tuple(int(place < kept) for place in range(K)))
    assert walk(draft, tokens, [False] * 5 + [True] * (1 + kept), aux, K) == expected


def test_each_run_of_the_mask_is_an_answer_of_its_own(draft: DraftRunner) -> None:
    tokens, aux = text_with(draft, 5, [2, 1, 0, 2])
    mask = [False] * 5 + [True] * 6 + [False] * 2 + [True] * (len(tokens) - 13)
    assert walk(draft, tokens, mask, aux, K).tokens == 5 + len(tokens) - 14
    first = [bit and index < 11 for index, bit in enumerate(mask)]
    second = [bit and index > 11 for index, bit in enumerate(mask)]
    parts = [walk(draft, tokens, part, aux, K) for part in (first, second)]
    assert parts[0] + parts[1] == walk(draft, tokens, mask, aux, K)


def test_answers_with_nothing_to_propose_make_no_step(draft: DraftRunner) -> None:
    tokens, aux = text_with(draft, 5, [1])
    none = Acceptance(0, 0, (0,) * K)
    assert walk(draft, tokens, [False] * len(tokens), aux, K) == none
    assert walk(draft, tokens, [False] * 5 + [True] + [False] * (len(tokens) - 6), aux, K) == none


def test_shards_are_walked_by_side_and_without_the_quarantine(draft: DraftRunner, tmp_path: Path) -> None:
    shards = [write_shard(tmp_path / str(i), samples(10, seed=i)) for i in range(2)]
    walked = list(walk_shards(draft, shards, K))
    assert [(shard, sample) for shard, sample, _ in walked] == [(0, 4), (0, 9), (1, 4), (1, 9)]
    for shard, sample, acceptance in walked:
        _, mask, _ = samples(10, seed=shard)[sample]
        assert acceptance.tokens == sum(mask) - 1
        assert acceptance.tokens == acceptance.steps + sum(acceptance.accepted) - (acceptance.steps - _bonus(acceptance))
    kept = list(walk_shards(draft, shards, K, quarantine={1: [4]}, side="held_out"))
    assert [(shard, sample) for shard, sample, _ in kept] == [(0, 4), (0, 9), (1, 9)]


def _bonus(acceptance: Acceptance) -> int:
    return acceptance.tokens - sum(acceptance.accepted)
