"""Speculative sampling gives the verifier's own distribution, whatever the draft proposes and however few tokens it knows."""

import itertools
import random

import pytest
import torch
from torch import Tensor

from kimi_adapters.token_choice import Greedy, Sampling, residual
from tests.kimi_adapters.draft_fixtures import generator

V, TARGETS, K, T = 6, torch.tensor([0, 2, 3, 5]), 2, 0.7


def tables() -> tuple[Tensor, Tensor]:
    """Logits of the next token after each of V: the verifier's [V, V], the draft's [V, len(TARGETS)], wrong but not blind."""
    verifier = 1.5 * torch.randn(V, V, generator=generator(1))
    return verifier, verifier[:, TARGETS] + 1.0 * torch.randn(V, len(TARGETS), generator=generator(2))


def spoken(choice: Sampling, verifier: Tensor, draft: Tensor, length: int) -> tuple[list[int], list[int]]:
    """`length` tokens after token 0 by draft-and-verify over the tables, and how many proposals each step kept."""
    text, kept = [0], list[int]()
    while len(text) <= length:
        proposals: list[int] = []
        for _ in range(K):
            last = [*text, *proposals][-1]
            proposals.append(int(TARGETS[choice.propose(draft[last][None], TARGETS)]))
        tokens, matches = choice.judge(proposals, verifier[[text[-1], *proposals]])
        assert tokens[:matches] == proposals[:matches] and len(tokens) == matches + 1
        text, kept = [*text, *tokens], [*kept, matches]
    return text[1 : length + 1], kept


def test_three_tokens_are_jointly_distributed_as_the_verifiers_own() -> None:
    """Chi-square over the 216 texts of three tokens, exact expectations; 1.4 of its mean is far in the tail (p < 0.001)."""
    verifier, draft = tables()
    shares = torch.softmax(verifier.double() / T, dim=-1)
    choice, draws = Sampling(T, 5), 3000
    counts: dict[tuple[int, ...], int] = {}
    steps: list[int] = []
    for _ in range(draws):
        text, kept = spoken(choice, verifier, draft, 3)
        counts[tuple(text)] = counts.get(tuple(text), 0) + 1
        steps += kept
    assert {0, 1, 2} == set(steps), "rejections at both places and a bonus token occur"
    expected = {
        text: draws * float(shares[0, text[0]] * shares[text[0], text[1]] * shares[text[1], text[2]])
        for text in itertools.product(range(V), repeat=3)
    }
    common = [text for text, count in expected.items() if count >= 5]
    rest = draws - sum(expected[text] for text in common)
    pairs = [(counts.get(text, 0), expected[text]) for text in common]
    pairs.append((draws - sum(counts.get(text, 0) for text in common), rest))
    chi_square = sum((seen - wanted) ** 2 / wanted for seen, wanted in pairs)
    assert len(common) > 40 and chi_square < 1.4 * (len(pairs) - 1)
    outside = sum(count for text, count in counts.items() if {1, 4} & set(text))
    assert outside > draws / 10, "tokens that the draft cannot propose"


def test_what_stays_and_what_replaces_it_add_up_to_p() -> None:
    source = generator(3)
    for _ in range(20):
        p, q = torch.softmax(3 * torch.randn(2, V, generator=source).double(), dim=-1)
        q = torch.where(torch.tensor([True, False, True, True, False, True]), q, 0.0)
        q = q / q.sum()
        stays = torch.minimum(p, q)
        left = residual(p, q)
        torch.testing.assert_close(stays + (1 - stays.sum()) * left / left.sum(), p)
    assert torch.equal(residual(p, p), p)


def test_near_temperature_0_it_is_greedy() -> None:
    verifier, draft = tables()
    proposals = [int(TARGETS[draft[0].argmax()])]
    proposals.append(int(TARGETS[draft[proposals[0]].argmax()]))
    sampling = Sampling(1e-4, 0)
    for last in (0, proposals[0]):
        assert int(sampling.propose(draft[last][None], TARGETS)) == int(draft[last].argmax())
    logits = verifier[[0, *proposals]]
    assert sampling.judge(proposals, logits) == Greedy().judge(proposals, logits)
    assert sampling.first(verifier[3]) == Greedy().first(verifier[3])


def test_a_draw_is_never_a_token_without_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = Sampling(1.0, 0)
    monkeypatch.setattr(choice, "_source", random.Random(0))
    shares = torch.tensor([0.0, 0.3, 0.0, 0.7, 0.0], dtype=torch.float64)
    assert {choice._drawn(shares) for _ in range(200)} == {1, 3}
    monkeypatch.setattr(choice._source, "random", lambda: 1.0)
    assert choice._drawn(shares) == 3
    with pytest.raises(ValueError, match="above 0"):
        Sampling(0.0, 0)
