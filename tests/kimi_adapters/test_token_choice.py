"""Speculative sampling gives the verifier's own distribution, whatever the draft proposes and however few tokens it knows."""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from kimi_adapters.token_choice import Greedy, Sampling, StepChoices, TokenChoice, drawn, residual
from tests.kimi_adapters.draft_fixtures import generator

V, TARGETS, K, T = 6, torch.tensor([0, 2, 3, 5]), 2, 0.7


def tables() -> tuple[Tensor, Tensor]:
    """Logits of the next token after each of V: the verifier's [V, V], the draft's [V, len(TARGETS)], wrong but not blind."""
    verifier = 1.5 * torch.randn(V, V, generator=generator(1))
    return verifier, verifier[:, TARGETS] + 1.0 * torch.randn(V, len(TARGETS), generator=generator(2))


def spoken(
    choices: Sequence[TokenChoice], verifier: Tensor, draft: Tensor, length: int
) -> tuple[list[list[int]], list[list[int]]]:
    """`length` tokens of each answer after token 0 by draft-and-verify over the tables, and what its steps kept."""
    texts, kept = [[0] for _ in choices], [list[int]() for _ in choices]
    while min(map(len, texts)) <= length:
        step, known = StepChoices(choices), torch.tensor([text[-1] for text in texts])
        chains = known[:, None]
        for _ in range(K):
            chains = torch.cat([chains, TARGETS[step.propose(draft[chains[:, -1]], TARGETS)][:, None]], dim=1)
        proposals = chains[:, 1:].tolist()
        for row, (tokens, matches) in enumerate(step.judge(proposals, verifier[chains])):
            assert tokens[:matches] == proposals[row][:matches] and len(tokens) == matches + 1
            texts[row] += tokens
            kept[row].append(matches)
    return [text[1 : length + 1] for text in texts], kept


def test_three_tokens_are_jointly_distributed_as_the_verifiers_own() -> None:
    """Chi-square over the 216 texts of three tokens, exact expectations; 1.4 of its mean is far in the tail (p < 0.001)."""
    verifier, draft = tables()
    shares = torch.softmax(verifier.double() / T, dim=-1)
    draws = 3000
    texts, kept = spoken([Sampling(T, number) for number in range(draws)], verifier, draft, 3)
    counts = Counter(map(tuple, texts))
    assert {0, 1, 2} == {one for of in kept for one in of}, "rejections at both places and a bonus token occur"
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
    both = torch.stack([p, p]), torch.stack([p, q])
    assert torch.equal(residual(*both), torch.stack([p, residual(p, q)])), "each row by itself"


def test_an_answer_is_the_same_whoever_is_beside_it() -> None:
    """Greedy and sampled ones, at temperatures of their own, in one step."""
    verifier, draft = tables()
    kinds: list[Callable[[], TokenChoice]] = [
        lambda: Sampling(T, 1),
        Greedy,
        lambda: Sampling(2.0, 2),
        Greedy,
        lambda: Sampling(T, 3),
    ]
    together, kept = spoken([make() for make in kinds], verifier, draft, 40)
    for row, make in enumerate(kinds):
        alone, kept_alone = spoken([make()], verifier, draft, 40)
        assert alone == [together[row]]
        assert kept_alone[0] == kept[row][: len(kept_alone[0])]
    assert together[0] != together[4] and together[1] == together[3]


def test_near_temperature_0_it_is_greedy() -> None:
    verifier, draft = tables()
    proposals = [int(TARGETS[draft[0].argmax()])]
    proposals.append(int(TARGETS[draft[proposals[0]].argmax()]))
    sampling = StepChoices([Sampling(1e-4, 0)])
    for last in (0, proposals[0]):
        assert int(sampling.propose(draft[last][None], TARGETS)) == int(draft[last].argmax())
    logits, greedy = verifier[[0, *proposals]][None], StepChoices([Greedy()])
    assert sampling.judge([proposals], logits) == greedy.judge([proposals], logits)
    assert sampling.first(verifier[3:4]) == greedy.first(verifier[3:4])


def test_a_draw_is_never_a_token_without_a_share() -> None:
    shares = torch.tensor([[0.0, 0.3, 0.0, 0.7, 0.0]], dtype=torch.float64)
    numbers = torch.linspace(0, 1, 201, dtype=torch.float64)  # 1.0 is past the end
    tokens = drawn(shares.expand(201, -1).contiguous(), numbers).tolist()
    assert tokens == [1] * 60 + [3] * 141


def test_without_a_proposal_the_verifiers_own_token_is_drawn() -> None:
    """A chain of no token, where the cache has room for none."""
    verifier, _ = tables()
    (tokens, kept), (other, _) = StepChoices([Sampling(T, 0), Greedy()]).judge([[], []], verifier[[0, 0]][:, None])
    assert len(tokens) == 1 and kept == 0 and other == [int(verifier[0].argmax())]


def test_a_temperature_is_above_0() -> None:
    with pytest.raises(ValueError, match="above 0"):
        Sampling(0.0, 0)
