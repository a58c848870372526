"""Packs come in order, with the bits that they have when they are loaded one by one, and never more than a few ahead."""

import threading
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch

from errors import UserError
from kimi_adapters.packing import Batch, PackedShards, Piece
from kimi_adapters.prefetch import AHEAD, Prefetch, Wanted
from tests.kimi_adapters.draft_fixtures import LAYER_IDS, VERIFIER, samples, write_shard

CPU = torch.device("cpu")


class Slow(PackedShards):
    """Reads that take a while, and are counted."""

    seconds = 0.0
    loaded = 0

    def load(self, pack: Sequence[Piece], noise_seed: Sequence[int] = ()) -> Batch:
        time.sleep(self.seconds)
        self.loaded += 1
        return super().load(pack, noise_seed)


def packs(folder: Path, noise: float = 0.1, **options: object) -> tuple[Slow, list[Wanted]]:
    files = [write_shard(folder / str(i), samples(12, seed=i), **options) for i in range(2)]  # type: ignore[arg-type]
    data = Slow(files, LAYER_IDS, 48, 3, noise=noise)
    return data, [(pack, (0, number)) for number, pack in enumerate(data.packs(0))]


def test_the_same_bits_in_the_same_order(tmp_path: Path) -> None:
    data, wanted = packs(tmp_path)
    with Prefetch(data, CPU, wanted) as batches:
        for pack, seed in wanted:
            ours, theirs = batches.take(), data.load(pack, seed)
            assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_it_starts_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kimi_k25.md, row 19: one that is spawned imports the main module again."""

    def refused(process: BaseProcess) -> None:
        raise AssertionError(f"{process.name} was started")

    monkeypatch.setattr(BaseProcess, "start", refused)
    data, wanted = packs(tmp_path)
    with Prefetch(data, CPU, wanted) as batches:
        assert all(batches.take() for _ in wanted)


def test_it_is_bounded_and_its_threads_end(tmp_path: Path) -> None:
    data, wanted = packs(tmp_path)
    with Prefetch(data, CPU, wanted) as batches:
        batches.take()
        while data.loaded < 1 + AHEAD:
            time.sleep(0.01)
        time.sleep(0.1)
        assert data.loaded == 1 + AHEAD < len(wanted)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("packs")]


def test_the_wait_for_a_slow_reader_is_counted(tmp_path: Path) -> None:
    data, wanted = packs(tmp_path)
    data.seconds = 0.05
    with Prefetch(data, CPU, wanted) as batches:
        batches.take()
        waited = batches.waited
        assert waited > 0.04
        while data.loaded < 1 + AHEAD:
            time.sleep(0.01)
        batches.take()
        assert batches.waited - waited < 0.04, "it was there"


def test_a_state_that_is_not_finite_is_an_error_where_it_is_taken(tmp_path: Path) -> None:
    made = samples(12)
    total = sum(len(ids) for ids, _, _ in made)
    states = {name: torch.zeros(total, VERIFIER.hidden_size) for name in [*(f"layer.{k}" for k in LAYER_IDS), "last"]}
    states["layer.3"][4, 7] = float("nan")
    data = PackedShards([write_shard(tmp_path, made, states)], LAYER_IDS, 48, 3)
    wanted: list[Wanted] = [(pack, ()) for pack in data.packs(0)]
    with pytest.raises(UserError, match="not finite in sample 0"), Prefetch(data, CPU, wanted) as batches:
        for _ in wanted:
            batches.take()


def test_states_travel_as_they_are_stored(tmp_path: Path) -> None:
    """What a GPU gets before its own cast: a copy of the file's bits, which is the batch of a CPU but for float32."""
    data, wanted = packs(tmp_path, noise=0.0, dtype=torch.bfloat16)
    assert data.stored_dtype == torch.bfloat16
    for pack, _ in wanted[:3]:
        raw, loaded = data.read(pack, torch.bfloat16), data.load(pack)
        assert raw["hidden_states"].dtype == raw["verifier_last_hidden_states"].dtype == torch.bfloat16
        assert all(torch.equal(data.finished(raw, ())[name], loaded[name]) for name in loaded)


def test_it_counts_what_it_read_and_how_long(tmp_path: Path) -> None:
    data, wanted = packs(tmp_path)
    data.seconds = 0.02
    with Prefetch(data, CPU, wanted) as batches:
        for _ in wanted:
            batches.take()
        tokens = sum(len(piece) for pack, _ in wanted for piece in pack)
        assert batches.read_bytes == tokens * (len(LAYER_IDS) + 1) * VERIFIER.hidden_size * 4
        assert batches.reading.seconds >= 0.02 * len(wanted)
