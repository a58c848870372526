"""Training and replay see neither what validation put aside nor what it dropped."""

import json
from typing import Any

import pytest
import torch

from artifacts.writer import ArtifactWriter
from errors import ToldToStop
from kimi_adapters import packing, walk
from kimi_adapters.acceptance_length import Acceptance
from kimi_adapters.packing import PackedShards
from kimi_adapters.tensor_file import TensorWriter
from tasks import acceptance, training
from tasks.formats import ACCEPTANCE, QUARANTINE, VOCABULARY
from tasks.shard_files import left_out, shard_files
from tasks.training_settings import TrainingSettings
from tests.tasks.stage_jobs import LAYERS, Bench, Made, Text


@pytest.fixture(scope="module")
def shards(bench: Bench, texts: list[Text]) -> list[Made]:
    """Two shards, and the first once more; every second sample is held out."""
    sided = [Text(t.ids, t.mask, "held_out" if i % 2 else "train", t.more) for i, t in enumerate(texts)]
    made = [bench.shard(sided[:6]), bench.shard(sided[6:])]
    bench.extract(*made)
    return [*made, made[0]]


def inputs_of(bench: Bench, shards: list[Made]) -> dict[str, str]:
    """Inputs as training and replay have them, with lists that name samples of both shards."""
    writer = ArtifactWriter("quarantine", bench.workspace)
    lists = {"quarantine": {shards[0].ids: [0, 1]}, "drop": {shards[0].ids: [3], shards[1].ids: [2]}}
    writer.write(QUARANTINE, json.dumps(lists).encode())
    inputs = {"quarantine": bench.store.commit(writer.seal()).digest}
    for i, shard in enumerate(shards):
        inputs |= {f"ids.{i}": shard.ids, f"masks.{i}": shard.masks, f"states.{i}": shard.states}
    return inputs


def test_training_takes_only_what_is_left(bench: Bench, shards: list[Made]) -> None:
    job = bench.one_job({}, inputs_of(bench, shards), {}, [])
    out = left_out(job)
    assert {number: set(samples) for number, samples in out.items()} == {0: {0, 1, 3}, 1: {2}, 2: set(range(6))}
    taken = PackedShards(shard_files(job), LAYERS, 64, 3, quarantine=out).pieces
    assert {(piece.shard, piece.sample) for piece in taken} == {(0, 2), (0, 4), (1, 0), (1, 4)}


def test_the_stage_trains_on_the_train_side_alone_and_noise_is_for_it(
    bench: Bench, shards: list[Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage as it runs, up to where its data stands."""
    found: list[PackedShards] = []

    class Watched(PackedShards):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            found.append(self)
            raise ToldToStop("the data stands")

    monkeypatch.setattr(packing, "PackedShards", Watched)
    writer = ArtifactWriter("vocabulary", bench.workspace)
    with writer.open(VOCABULARY) as file:
        TensorWriter(file, []).close()
    words = bench.store.commit(writer.seal()).digest
    recipe = TrainingSettings(noise=0.25, pack_tokens=64, ttt_steps=4, seed=7, supervised="all").recipe()
    inputs: dict[str, Any] = {**inputs_of(bench, shards), "verifier": bench.verifier, "vocabulary": words}
    with pytest.raises(ToldToStop, match="the data stands"):
        bench.job(training.compute, {**recipe, "layer_ids": LAYERS}, inputs, sharding="none", checkpoint_every_steps=50)
    (data,) = found
    assert {(piece.shard, piece.sample) for piece in data.pieces} == {(0, 2), (0, 4), (1, 0), (1, 4)}
    assert (data.noise, data.seed, data.pack_tokens, data.ttt_steps) == (0.25, 7, 64, 4)
    assert all(piece.supervised == len(piece) - 3 for piece in data.pieces), "all tokens that no neighbour's chain begins at"
    pack, sample = data.packs(0)[0], data.pieces[0]
    clean = data.shards[sample.shard].state(f"layer.{LAYERS[0]}", 0, 8)
    assert not torch.equal(data.load(pack, (0, 0))["hidden_states"], data.read(pack)["hidden_states"])
    assert torch.equal(clean, data.shards[sample.shard].state(f"layer.{LAYERS[0]}", 0, 8)), "what replays read has none"


def test_replay_takes_only_what_is_left(bench: Bench, shards: list[Made], monkeypatch: pytest.MonkeyPatch) -> None:
    """The stage as it runs, but for the draft: which samples it walks over does not depend on what is proposed."""

    class Draft:
        class shape:  # noqa: N801 - an attribute of the draft runner
            layer_ids = LAYERS

    monkeypatch.setattr(acceptance, "_runners", lambda job: (Draft, Draft))
    monkeypatch.setattr(walk, "walk", lambda draft, tokens, mask, aux, k: Acceptance(6, 4, (2, 0)))
    made = bench.job(acceptance.compute_replay, {"k": 2}, inputs_of(bench, shards))
    cases = json.loads((bench.store.folder(made["acceptance"]) / ACCEPTANCE).read_text())["cases"]
    assert {(case["shard"], case["sample"]) for case in cases} == {(0, 5), (1, 1), (1, 3)}
