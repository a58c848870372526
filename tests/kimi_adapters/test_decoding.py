"""Draft-and-verify on four layers of SmolLM2, with a draft that is right sometimes, and replay beside it."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from errors import UserError
from kimi_adapters.acceptance_length import Acceptance, total
from kimi_adapters.decoding import TOKENS, DecodeResult, decode_all, side_by_side, tied, until_stop
from kimi_adapters.draft import draft_config_values, verifier_rows
from kimi_adapters.draft_runner import DraftRunner
from kimi_adapters.draft_vocabulary import DraftVocabulary
from kimi_adapters.packing import PackedShards, ShardFiles
from kimi_adapters.recipe import Recipe
from kimi_adapters.replay import walk_shards
from kimi_adapters.token_choice import Sampling
from kimi_adapters.trainer import train
from kimi_adapters.verifier import Verifier
from kimi_adapters.walk import walk
from kimi_adapters.weights import Checkpoint
from tests.kimi_adapters.alone import decode, greedy
from tests.kimi_adapters.heard_answers import heard, talkative

LAYERS, LAYER_IDS, VOCABULARY_SIZE = [0, 1, 28, 29], [1, 2, 3], 2048
K, NEW_TOKENS, PROMPTS = 3, 24, 6
NO_STOP: list[int] = []


@dataclass(frozen=True)
class Setting:
    verifier: Verifier
    trained: DraftRunner
    untrained: DraftRunner
    prompts: list[list[int]]
    plain: list[list[int]]
    shard: ShardFiles


@pytest.fixture(scope="module")
def setting(whole_verifier: Path, tmp_path_factory: pytest.TempPathFactory) -> Setting:
    """The cut verifier, its greedy answers to prompts of random tokens, and a draft trained on most of them."""
    directory = tmp_path_factory.mktemp("decoding")
    checkpoint = Checkpoint(talkative(whole_verifier, directory / "cut", VOCABULARY_SIZE))
    verifier = Verifier(checkpoint)
    source = torch.Generator().manual_seed(0)
    prompts = [torch.randint(100, VOCABULARY_SIZE, (size,), generator=source).tolist() for size in range(4, 4 + PROMPTS)]
    plain = [greedy(verifier, prompt, NEW_TOKENS, NO_STOP) for prompt in prompts]

    made = [(p + a, [0] * len(p) + [1] * len(a), "train" if i % 4 else "held_out")
            for i, (p, a) in enumerate(zip(prompts, plain, strict=True))]  # fmt: skip
    shard = heard(directory / "shard", verifier, made, LAYER_IDS)

    answers = {token for answer in plain for token in answer}
    vocabulary = DraftVocabulary.of_tokens(answers, checkpoint.config.vocab_size)
    recipe = Recipe(epochs=25, pack_tokens=64, lr=2e-3, intermediate_size=256, norm_before_fc=True)
    data = PackedShards([shard], LAYER_IDS, recipe.pack_tokens, recipe.ttt_steps)
    rows = verifier_rows(checkpoint, vocabulary)
    result = train(recipe, data, checkpoint.config, rows, vocabulary, directory / "c", lambda entry: None)
    config, tensors = draft_config_values(result.model.config, torch.float32), result.model.state_dict()
    trained, untrained = DraftRunner(config, tensors), DraftRunner(config, {**tensors, **result.initial})
    return Setting(verifier, trained, untrained, prompts, plain, shard)


@pytest.fixture(scope="module")
def decoded(setting: Setting) -> list[DecodeResult]:
    return [decode(setting.verifier, setting.trained, p, K, NEW_TOKENS, NO_STOP) for p in setting.prompts]


@pytest.mark.parametrize(("k", "trained"), [(1, True), (5, True), (3, False)])
def test_the_output_is_that_of_plain_decoding(setting: Setting, k: int, trained: bool) -> None:
    draft = setting.trained if trained else setting.untrained
    for prompt, expected in zip(setting.prompts, setting.plain, strict=True):
        result = decode(setting.verifier, draft, prompt, k, NEW_TOKENS, NO_STOP)
        assert result.output == expected
        assert result.acceptance.tokens == NEW_TOKENS - 1


def test_every_number_of_accepted_tokens_occurs(setting: Setting, decoded: list[DecodeResult]) -> None:
    """Else the tests here would show little: the trained draft is right for 0, 1, 2 and 3 tokens."""
    assert [result.output for result in decoded] == setting.plain
    together = total([result.acceptance for result in decoded], K)
    first, second, third = together.accepted
    assert together.steps > first > second > third > 0
    assert 1.2 < together.length < K + 0.5


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 8])
def test_the_length_limit_is_met_exactly_and_replay_counts_the_same(setting: Setting, limit: int) -> None:
    for prompt, plain in zip(setting.prompts[:4], setting.plain[:4], strict=True):
        result = decode(setting.verifier, setting.trained, prompt, K, limit, NO_STOP)
        assert result.output == plain[:limit]
        assert replay_of(setting, prompt, result.output) == result.acceptance


def test_a_stop_token_ends_the_output_wherever_it_falls_and_replay_counts_the_same(setting: Setting) -> None:
    inside_a_run = 0
    for prompt, plain in zip(setting.prompts[:4], setting.plain[:4], strict=True):
        for stop in [token for place, token in enumerate(plain) if plain.index(token) == place][2:7]:
            expected = plain[: plain.index(stop) + 1]
            result = decode(setting.verifier, setting.trained, prompt, K, NEW_TOKENS, [stop, 1])
            assert result.output == expected == until_stop(plain, [stop])
            assert replay_of(setting, prompt, expected) == result.acceptance
            # A step without its bonus token: the stop token was a proposal, perhaps with others after it.
            inside_a_run += result.acceptance.tokens < sum(result.acceptance.accepted) + result.acceptance.steps
    assert inside_a_run > 1
    assert greedy(setting.verifier, setting.prompts[0], NEW_TOKENS, setting.plain[0][5:6]) == until_stop(
        setting.plain[0], setting.plain[0][5:6]
    )


def test_replay_equals_decoding_step_for_step(setting: Setting, decoded: list[DecodeResult]) -> None:
    real = [result.acceptance for result in decoded]
    assert [replay_of(setting, p, a) for p, a in zip(setting.prompts, setting.plain, strict=True)] == real
    held_out = list(walk_shards(setting.trained, [setting.shard], K))
    assert [acceptance for _, _, acceptance in held_out] == real[::4]


def test_sampled_decoding_is_greedy_near_temperature_0_and_its_own_at_1(setting: Setting, decoded: list[DecodeResult]) -> None:
    def sampled(number: int, temperature: float, seed: str) -> DecodeResult:
        choice = Sampling(temperature, seed)
        return decode(setting.verifier, setting.trained, setting.prompts[number], K, NEW_TOKENS, NO_STOP, choice)

    assert [sampled(number, 1e-4, "a") for number in range(2)] == decoded[:2]
    warm = [sampled(number, 1.0, seed) for number in range(3) for seed in "ab"]
    assert sampled(0, 1.0, "a") == warm[0] != warm[1]
    for result in warm:
        assert len(result.output) == NEW_TOKENS and result.acceptance.tokens == NEW_TOKENS - 1
    together = total([result.acceptance for result in warm], K)
    assert 0 < together.accepted[0] < together.steps


def test_prompts_side_by_side_are_answered_as_each_is_alone(setting: Setting, decoded: list[DecodeResult]) -> None:
    verifier, draft = setting.verifier, setting.trained
    assert decode_all(verifier, draft, setting.prompts, K, NEW_TOKENS, NO_STOP) == decoded
    stops = [plain[place] for plain, place in zip(setting.plain, (0, 3, 9, 14, 5, 20), strict=True)]
    alone = [decode(verifier, draft, prompt, K, NEW_TOKENS, stops) for prompt in setting.prompts]
    assert len({len(result.output) for result in alone}) > 2
    assert decode_all(verifier, draft, setting.prompts, K, NEW_TOKENS, stops) == alone
    warm = [
        decode(verifier, draft, prompt, K, NEW_TOKENS, NO_STOP, Sampling(1.0, i)) for i, prompt in enumerate(setting.prompts)
    ]
    choices = [Sampling(1.0, i) for i in range(PROMPTS)]
    assert decode_all(verifier, draft, setting.prompts, K, NEW_TOKENS, NO_STOP, choices) == warm


def test_prompts_go_in_runs_of_bounded_rows_and_tokens() -> None:
    def runs(lengths: list[int], new: int = 10) -> list[int]:
        prompts = [[1] * length for length in lengths]
        found = list(side_by_side(prompts, new))
        assert [number for run in found for number in range(run.start, run.stop)] == list(range(len(prompts)))
        assert all(
            len(prompts[run]) * max(len(one) + new for one in prompts[run]) <= TOKENS or len(prompts[run]) == 1 for run in found
        )
        return [len(prompts[run]) for run in found]

    assert runs([5] * 70) == [32, 32, 6] and runs([]) == []
    assert runs([8000, 8000, 8000, 5, 5]) == [2, 2, 1] and runs([20000, 5, 20000]) == [1, 1, 1]


def test_answers_may_end_where_the_context_does(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = max(map(len, setting.prompts)) + NEW_TOKENS
    monkeypatch.setattr(setting.verifier, "config", replace(setting.verifier.config, max_position_embeddings=longest))
    results = decode_all(setting.verifier, setting.trained, setting.prompts, K, NEW_TOKENS, NO_STOP)
    assert [result.output for result in results] == setting.plain
    with pytest.raises(UserError, match="do not fit the verifier's context"):
        decode_all(setting.verifier, setting.trained, setting.prompts, K, NEW_TOKENS + 1, NO_STOP)


def test_outputs_may_part_where_two_tokens_are_equally_likely(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt, plain = setting.prompts[0], setting.plain[0]
    twin = next(token for token in range(VOCABULARY_SIZE) if token not in plain)
    head = setting.verifier.lm_head.clone()
    head[twin] = head[plain[7]] * (1 + 1e-6)
    monkeypatch.setattr(setting.verifier, "lm_head", head)
    assert tied(setting.verifier, prompt, plain, [*plain[:7], twin, *plain[:9]])
    assert not tied(setting.verifier, prompt, plain, [*plain[:6], twin, *plain[7:]]) and not tied(
        setting.verifier, prompt, plain, plain
    )
    head[twin] = head[plain[7]] * (1 - 1e-3)
    assert not tied(setting.verifier, prompt, plain, [*plain[:7], twin, *plain[:9]])


def test_until_stop() -> None:
    assert until_stop([4, 5, 6], [5, 6]) == [4, 5]
    assert until_stop([4, 5, 6], []) == [4, 5, 6]
    assert until_stop([], [5]) == []


def replay_of(setting: Setting, prompt: list[int], answer: list[int]) -> Acceptance:
    tokens = [*prompt, *answer]
    cache = setting.verifier.new_cache(1, len(tokens))
    aux = setting.verifier.forward(torch.tensor([tokens]), cache, LAYER_IDS).aux[0]
    return walk(setting.trained, tokens, [False] * len(prompt) + [True] * len(answer), aux, K)
