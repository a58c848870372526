import json
from pathlib import Path
from typing import Any

import pytest
import torch
from speculators.models.eagle3 import Eagle3DraftModel
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from errors import UserError
from kimi_adapters import draft_runner
from kimi_adapters.draft import draft_config_values, save_draft, trainable_state
from kimi_adapters.draft_runner import DraftRunner
from kimi_adapters.draft_vocabulary import DraftVocabulary
from kimi_adapters.recipe import Recipe
from tests.kimi_adapters.draft_fixtures import VERIFIER, VOCABULARY, generator, outputs_in
from tests.kimi_adapters.draft_models import FLAG_SETS, flag_name, tiny_draft

STEPS = 4


def runner_of(model: Eagle3DraftModel) -> DraftRunner:
    return DraftRunner(draft_config_values(model.config, torch.float32), model.state_dict())


def sequence(length: int, seed: int = 2) -> tuple[Tensor, Tensor]:
    """Token ids [length] and the auxiliary states of all but the last."""
    source = generator(seed)
    ids = torch.randint(0, VERIFIER.vocab_size, (length,), generator=source)
    return ids, torch.randn(length - 1, 3 * VERIFIER.hidden_size, generator=source)


def speculators_chain(model: Eagle3DraftModel, ids: Tensor, aux: Tensor) -> tuple[list[int], list[Tensor]]:
    """The chain after `ids` by Eagle3DraftModel.forward and its logits: its own predictions go in as the text that
    follows, since the forward takes the next steps' tokens from there."""
    targets, last = VOCABULARY.targets(), len(aux) - 1
    logits: list[Tensor] = []
    hook = model.lm_head.register_forward_hook(lambda module, inputs, output: logits.append(output[0, last]))
    chain: list[int] = []
    for step in range(STEPS):
        logits.clear()
        text = torch.cat([ids, torch.tensor(chain, dtype=torch.int64)])[1:]
        states = torch.cat([aux, torch.zeros(len(text) - len(aux), aux.shape[1])])
        with torch.no_grad():
            drafts = model(states[None], text[None], torch.zeros(1, len(text), dtype=torch.int64), ttt_steps=step + 1)
        chain.append(int(targets[drafts[step][0, last]]))
    hook.remove()
    return chain, logits


OWN_ROWS = {"train_lm_head": True, "train_embeddings": True}  # away from the verifier's, in these tests


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("flags", [*FLAG_SETS, {"layer": "qwen3"}, {"layer": "qwen3", **OWN_ROWS}], ids=flag_name)
def test_chains_and_logits_are_those_of_speculators_forward(flags: dict[str, Any], num_layers: int) -> None:
    model = tiny_draft(Recipe(num_layers=num_layers, **flags)).eval()
    runner = runner_of(model)
    ids, aux = sequence(17)
    expected, expected_logits = speculators_chain(model, ids, aux)
    seen: list[Tensor] = []
    head = runner._layers.logits

    def watched(normed: Tensor) -> Tensor:
        seen.append(head(normed))
        return seen[-1]

    runner._layers.logits = watched  # type: ignore[method-assign]
    cache = runner.new_cache(16)
    hidden = runner.feed(aux, ids[1:], cache)
    assert runner.propose(hidden, torch.tensor([15]), STEPS, cache)[0].tolist() == expected
    for ours, theirs in zip(seen, expected_logits, strict=True):
        assert ((ours[0] - theirs).abs().max() / theirs.abs().max()) < 1e-5


def test_fed_in_pieces_as_in_one_and_a_proposal_leaves_the_cache_alone() -> None:
    runner = runner_of(tiny_draft(Recipe(num_layers=2)))
    ids, aux = sequence(20)
    whole, pieces = runner.new_cache(19), runner.new_cache(30)
    expected = runner.feed(aux, ids[1:], whole)
    hidden = runner.feed(aux[:11], ids[1:12], pieces)
    for start, stop in ((11, 12), (12, 16), (16, 19)):
        runner.propose(hidden, torch.tensor([start - 1]), 3, pieces)
        hidden = runner.feed(aux[start:stop], ids[start + 1 : stop + 1], pieces)
    torch.testing.assert_close(hidden, expected, rtol=1e-5, atol=1e-5)
    chains = [runner.propose(h, torch.tensor([18]), 3, c) for h, c in ((expected, whole), (hidden, pieces))]
    assert torch.equal(*chains)


@pytest.mark.parametrize("at_once", [256, 3])
def test_chains_of_all_indices_at_once_are_those_of_each_alone(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_runner, "PROPOSE_ROWS", at_once)
    runner = runner_of(tiny_draft())
    ids, aux = sequence(15)
    rows = torch.tensor([3, 4, 7, 13])
    cache = runner.new_cache(14)
    together = runner.propose(runner.feed(aux, ids[1:], cache, rows), rows, 3, cache)
    for row, chain in zip(rows.tolist(), together, strict=True):
        alone = runner.new_cache(row + 1)
        hidden = runner.feed(aux[: row + 1], ids[1 : row + 2], alone)
        assert torch.equal(runner.propose(hidden, torch.tensor([row]), 3, alone)[0], chain)


class _Largest(TorchDispatchMode):
    """The most numbers that a tensor had which an operation gave."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.numbers = max([self.numbers, *(one.numel() for one in tree_leaves(out) if isinstance(one, torch.Tensor))])
        return out


@pytest.mark.parametrize("num_layers", [1, 2])
def test_a_long_replay_takes_its_scores_in_blocks(num_layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = runner_of(tiny_draft(Recipe(num_layers=num_layers)))
    length = 400
    ids, aux = sequence(length + 1)
    rows = torch.arange(0, length, 3)

    def replayed() -> tuple[torch.Tensor, torch.Tensor, int]:
        cache, largest = runner.new_cache(length), _Largest()
        with largest:
            hidden = runner.feed(aux, ids[1:], cache, rows)
            return hidden, runner.propose(hidden, rows, 3, cache), largest.numbers

    hidden, chains, whole = replayed()
    monkeypatch.setattr(draft_runner, "SCORES", 1 << 13)
    by_blocks, same_chains, numbers = replayed()
    torch.testing.assert_close(by_blocks, hidden, rtol=1e-5, atol=1e-5)
    assert torch.equal(same_chains, chains)
    assert whole > len(rows) * length > 2 * numbers


def test_it_loads_what_was_saved_and_takes_replacements(tmp_path: Path) -> None:
    model = tiny_draft()
    save_draft(model, outputs_in(tmp_path))
    untrained = trainable_state(tiny_draft(spread=0.0))
    ids, aux = sequence(12)

    def chain(runner: DraftRunner) -> list[int]:
        cache = runner.new_cache(11)
        found: list[int] = runner.propose(runner.feed(aux, ids[1:], cache), torch.tensor([10]), 3, cache)[0].tolist()
        return found

    assert chain(DraftRunner.load(tmp_path)) == chain(runner_of(model))
    assert chain(DraftRunner.load(tmp_path, replace=untrained)) == chain(runner_of(tiny_draft(spread=0.0)))
    assert set(chain(DraftRunner.load(tmp_path))) <= set(VOCABULARY.targets().tolist())


def test_with_the_whole_vocabulary_no_map_is_needed(tmp_path: Path) -> None:
    save_draft(tiny_draft(vocabulary=DraftVocabulary(97, 97)), outputs_in(tmp_path))
    assert DraftRunner.load(tmp_path).targets.tolist() == list(range(97))


def test_a_directory_that_is_no_draft_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        DraftRunner.load(tmp_path)
    save_draft(tiny_draft(), outputs_in(tmp_path))
    config = json.loads((tmp_path / "config.json").read_text())
    del config["norm_output"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="norm_output"):
        DraftRunner.load(tmp_path)
    tensors = tiny_draft().state_dict()
    for name in ("fc.weight", "d2t"):
        with pytest.raises(UserError, match=name):
            values = draft_config_values(tiny_draft().config, torch.float32)
            DraftRunner(values, {key: value for key, value in tensors.items() if key != name})
