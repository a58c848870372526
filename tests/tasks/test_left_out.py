"""Training and replay see neither what validation put aside nor what it dropped."""

import json

import pytest

from artifacts.writer import ArtifactWriter
from kimi_adapters import walk
from kimi_adapters.acceptance_length import Acceptance
from kimi_adapters.packing import PackedShards
from tasks import acceptance
from tasks.formats import ACCEPTANCE, QUARANTINE
from tasks.shard_files import left_out, shard_files
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
