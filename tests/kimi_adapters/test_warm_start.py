"""A parent's tensors as a draft of the same and of another vocabulary begins with them."""

from pathlib import Path

import pytest
import torch

from errors import UserError
from kimi_adapters.draft import HEAD, build_draft, draft_config, save_draft
from kimi_adapters.draft_runner import DraftRunner
from kimi_adapters.draft_vocabulary import DraftVocabulary
from kimi_adapters.published_draft import read_published
from kimi_adapters.recipe import Recipe
from kimi_adapters.warm_start import kept_tokens, parent_tensors
from tests.kimi_adapters.draft_fixtures import LAYER_IDS, VERIFIER, VOCABULARY, generator, outputs_in
from tests.kimi_adapters.draft_models import tiny_draft, tiny_rows

OTHER = DraftVocabulary.of_tokens([1, 5, 6, 7, 40, 41, 77, 96], VERIFIER.vocab_size)
KEPT = [5, 7, 41, 77]  # in both


def parent() -> dict[str, torch.Tensor]:
    """A draft away from its start, with a head and embeddings of its own."""
    tensors = {name: value.clone() for name, value in tiny_draft().state_dict().items()}
    for name in (HEAD, "embed_tokens.weight"):
        tensors[name] += torch.randn(tensors[name].shape, generator=generator(11))
    return tensors


def test_rows_of_draft_tokens_move_by_token_id_and_new_tokens_begin_as_the_verifiers() -> None:
    tensors, rows = parent(), tiny_rows(OTHER)
    moved = parent_tensors(tensors, VOCABULARY, rows, OTHER)
    before, after = VOCABULARY.targets().tolist(), OTHER.targets().tolist()
    for place, token in enumerate(after):
        expected = tensors[HEAD][before.index(token)] if token in KEPT else rows.lm_head[place]
        assert torch.equal(moved[HEAD][place], expected), token
    assert [after[i] for i in kept_tokens(VOCABULARY, OTHER)[0].tolist()] == KEPT
    assert {name for name in tensors if moved.get(name) is not tensors[name]} == {HEAD, "d2t", "t2d"}


def test_the_same_vocabulary_keeps_every_row_and_the_whole_one_is_a_vocabulary_too() -> None:
    tensors = parent()
    assert torch.equal(parent_tensors(tensors, VOCABULARY, tiny_rows(), VOCABULARY)[HEAD], tensors[HEAD])
    whole = DraftVocabulary(97, 97)
    grown = parent_tensors(tensors, VOCABULARY, tiny_rows(whole), whole)[HEAD]
    assert torch.equal(grown[VOCABULARY.targets()], tensors[HEAD])
    assert torch.equal(parent_tensors({HEAD: grown}, whole, tiny_rows(OTHER), OTHER)[HEAD], grown[OTHER.targets()])
    with pytest.raises(UserError, match=r"shape \[39, 32\] where its vocabulary of 8 tokens"):
        parent_tensors(tensors, OTHER, tiny_rows(), VOCABULARY)


def test_a_warm_start_drafts_what_its_parent_drafts_and_is_trained_against_the_verifier(tmp_path: Path) -> None:
    tensors = parent()
    model = tiny_draft()
    model.load_state_dict(tensors)
    save_draft(model, outputs_in(tmp_path))
    published = read_published(tmp_path)
    assert published.vocabulary is not None and torch.equal(published.vocabulary.targets(), VOCABULARY.targets())
    config = draft_config(Recipe(), VERIFIER, LAYER_IDS, VOCABULARY.size, "sdpa")
    begun = parent_tensors(published.tensors, published.vocabulary, tiny_rows(), VOCABULARY)
    child = build_draft(config, tiny_rows(), VOCABULARY, 5, begun)
    assert torch.equal(child.verifier_lm_head.weight, tiny_rows().lm_head)
    assert not child.lm_head.weight.requires_grad and not child.embed_tokens.weight.requires_grad
    aux = torch.randn(12, 96, generator=generator(2))
    tokens = torch.randint(0, 97, (12,), generator=generator(3))
    drafts = []
    for runner in (DraftRunner.load(tmp_path), DraftRunner(published.config, child.state_dict())):
        cache = runner.new_cache(12)
        drafts.append(runner.propose(runner.feed(aux, tokens, cache), torch.tensor([11]), 4, cache))
    assert torch.equal(*drafts)
