"""Vocabulary and training with a parent draft, run as stages: what is kept, what moves, and what the facts say."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from artifacts.writer import ArtifactWriter
from kimi_adapters.draft_vocabulary import DraftVocabulary
from kimi_adapters.published_draft import FROM_VERIFIER, PublishedDraft, read_published
from kimi_adapters.tensor_file import TensorFile
from kimi_adapters.tokenizer import Tokenizer
from kimi_adapters.torch_file import read_tensors
from kimi_adapters.weights import Checkpoint
from tasks import training, vocabulary
from tasks.formats import QUARANTINE, START, VOCABULARY
from tasks.settings import TrainingSettings
from tests.kimi_adapters.published_fixtures import (
    flat_names,
    flat_values,
    layer_values,
    nested_values,
    published_tensors,
    write_draft,
)
from tests.tasks.stage_jobs import LAYERS, Bench, Made, Text

TARGET = 49_152
RECIPE = TrainingSettings(epochs=1, pack_tokens=128, intermediate_size=64, max_position_embeddings=256, replay_every_steps=0)


@pytest.mark.parametrize(
    ("parent", "share", "kept"),
    [
        ([0, 2, 3, 6], 0.95, True),  # 18 of the best's 18
        ([0, 2, 5, 6], 0.95, False),  # 13 of 18
        ([0, 2, 5, 6], 0.7, True),
        ([0, 2, 3, 5], 0.5, False),  # without 6, a special token that is supervised
        ([0, 2, 3, 6, 1, 4, 5], 1.0, True),  # a larger one covers no less
    ],
)
def test_a_parents_tokens_stay_while_they_cover_enough_and_can_end_an_answer(
    parent: list[int], share: float, kept: bool
) -> None:
    counts = np.array([9, 0, 3, 5, 0, 0, 1, 0])
    best = vocabulary.choose(counts, [6, 7], 5)
    assert best.tolist() == [0, 2, 3, 6, 7]
    assert vocabulary.keep(counts, [6, 7], np.array(sorted(parent)), best, share) is kept


def words_of(
    bench: Bench, verifier: Path, shard: Made, size: int, parent: str | Path | None = None, share: float = 0.98
) -> str:
    inputs: dict[str, Any] = {"ids.0": shard.ids, "masks.0": shard.masks, "tokenizer": verifier}
    settings: dict[str, Any] = {"size": size, "target_size": TARGET}
    if parent:
        inputs["parent"], settings["min_parent_coverage"] = parent, share
    return bench.job(vocabulary.compute, settings, inputs)["vocabulary"]


def tokens_of(bench: Bench, digest: str) -> list[int]:
    found: list[int] = DraftVocabulary.read(bench.store.open(digest) / VOCABULARY, TARGET).targets().tolist()
    return found


def train(
    bench: Bench, verifier: Path, shard: Made, words: str, parent: str | Path | None = None, **recipe: Any
) -> dict[str, str]:
    nothing = ArtifactWriter("quarantine", bench.workspace)
    nothing.write(QUARANTINE, json.dumps({"quarantine": {}, "drop": {}}).encode())
    quarantine = bench.store.commit(nothing.seal()).digest
    inputs: dict[str, Any] = {"verifier": verifier, "quarantine": quarantine, "vocabulary": words}
    inputs |= {"ids.0": shard.ids, "masks.0": shard.masks, "states.0": shard.states}
    inputs |= {"parent": parent} if parent else {}
    for stale in (bench.workspace / "checkpoints").glob("*"):
        stale.unlink()
    settings = {**RECIPE.recipe(), "layer_ids": LAYERS, **recipe}
    return bench.job(training.compute, settings, inputs, sharding="none", checkpoint_every_steps=50)


def start_of(bench: Bench, made: dict[str, str]) -> dict[str, torch.Tensor]:
    """What training began with."""
    with TensorFile(bench.store.open(made["start"]) / START) as file:
        return read_tensors(file)


def draft_of(bench: Bench, made: dict[str, str]) -> PublishedDraft:
    return read_published(bench.store.open(made["draft"]))


def test_a_warm_start_goes_on_from_its_parent(bench: Bench, cut_verifier: Path, clean: Made) -> None:
    special = len(Tokenizer(cut_verifier).special_ids())
    small = words_of(bench, cut_verifier, clean, special + 30)
    first = train(bench, cut_verifier, clean, small)
    parent = draft_of(bench, first)

    kept = words_of(bench, cut_verifier, clean, special + 30, first["draft"])
    facts = bench.refs[kept].facts
    assert tokens_of(bench, kept) == tokens_of(bench, small)
    assert facts["parent"] == "kept" and facts["parent_coverage"] == facts["coverage"] == bench.refs[small].facts["coverage"]
    second = train(bench, cut_verifier, clean, kept, first["draft"])
    start = start_of(bench, second)
    assert start and all(torch.equal(tensor, parent.tensors[name]) for name, tensor in start.items())
    assert bench.refs[second["draft"]].facts["parent_tokens"] == special + 30
    assert "parent_tokens" not in bench.refs[first["draft"]].facts

    larger = words_of(bench, cut_verifier, clean, special + 90, first["draft"])
    assert bench.refs[larger].facts["parent"] == "replaced"
    assert len(tokens_of(bench, larger)) == special + 90
    third = train(bench, cut_verifier, clean, larger, first["draft"])
    assert bench.refs[third["draft"]].facts["parent_tokens"] == len(
        set(tokens_of(bench, larger)) & set(tokens_of(bench, small))
    )
    assert all(torch.equal(tensor, parent.tensors[name]) for name, tensor in start_of(bench, third).items())


@pytest.mark.parametrize("form", ["flat", "nested", "bare"])
def test_training_goes_on_from_a_draft_that_others_published(
    bench: Bench, cut_verifier: Path, clean: Made, texts: list[Text], tmp_path: Path, form: str
) -> None:
    """In SGLang's format and in speculators'; `bare` proposes every token and leaves both tables to the verifier."""
    checkpoint = Checkpoint(cut_verifier)
    used = {token for text in texts for token in text.ids} | set(Tokenizer(cut_verifier).special_ids())
    vocabulary = DraftVocabulary.of_tokens(range(TARGET) if form == "bare" else used, TARGET)
    tensors = published_tensors(vocabulary, hidden=checkpoint.config.hidden_size, inner=64)
    sizes = {"vocab_size": TARGET, "hidden_size": checkpoint.config.hidden_size, "intermediate_size": 64}
    if form == "nested":
        values = nested_values(transformer_layer_config=layer_values(**sizes), eagle_aux_hidden_state_layer_ids=LAYERS)
        folder = write_draft(tmp_path / form, values | {"draft_vocab_size": vocabulary.size}, tensors)
    else:
        eagle = {"eagle_aux_hidden_state_layer_ids": [k - 1 for k in LAYERS]}
        values = flat_values(**sizes, draft_vocab_size=vocabulary.size, eagle_config=eagle)
        left_out = FROM_VERIFIER if form == "bare" else ()
        stored = {name: tensor for name, tensor in flat_names(tensors).items() if name not in left_out}
        folder = write_draft(tmp_path / form, values, stored)
    words = words_of(bench, cut_verifier, clean, vocabulary.size, folder)
    assert bench.refs[words].facts["parent"] == "kept" and tokens_of(bench, words) == vocabulary.targets().tolist()
    recipe = {"train_lm_head": form != "bare", "norm_before_residual": form == "nested"}
    made = train(bench, cut_verifier, clean, words, folder, **recipe)
    assert bench.refs[made["draft"]].facts["parent_tokens"] == vocabulary.size
    expected = {name: tensor.bfloat16().float() for name, tensor in tensors.items() if name not in ("d2t", "t2d")}
    if form == "bare":
        expected |= dict(zip(FROM_VERIFIER, (checkpoint.embed(torch.float32), checkpoint.lm_head(torch.float32)), strict=True))
    start, kept = start_of(bench, made), set(FROM_VERIFIER if form == "bare" else FROM_VERIFIER[:1])  # what is not trained
    assert start.keys() == expected.keys() - kept
    begun = start | {name: tensor for name, tensor in draft_of(bench, made).tensors.items() if name in kept}
    assert [name for name, tensor in expected.items() if not torch.equal(begun[name], tensor)] == []
