from pathlib import Path

import pytest
import torch
from speculators.models.eagle3.data import shift_batch

from errors import UserError
from kimi_adapters.packing import STATES, PackedShards, Shard, ShardFiles
from tests.kimi_adapters.draft_fixtures import LAYER_IDS, VERIFIER, Sample, samples, save, write_shard

H = VERIFIER.hidden_size


def packed(files: list[ShardFiles], pack_tokens: int = 40, ttt_steps: int = 3, **options: object) -> PackedShards:
    return PackedShards(files, LAYER_IDS, pack_tokens, ttt_steps, **options)  # type: ignore[arg-type]


def test_alignment_is_that_of_speculators(tmp_path: Path) -> None:
    ids, mask = [10, 11, 12, 13, 14, 15, 16, 17], [0, 0, 0, 0, 1, 1, 1, 1]
    files = write_shard(tmp_path, [(ids, mask, "train")])
    data = packed([files])
    batch = data.load(data.packs(0)[0])
    shard = Shard(files, LAYER_IDS)
    shifted = shift_batch(
        {
            "input_ids": torch.tensor(ids),
            "hidden_states": torch.cat([shard.state(f"layer.{k}", 0, 8) for k in LAYER_IDS], dim=1),
            "verifier_last_hidden_states": shard.state("last", 0, 8),
            "loss_mask": torch.tensor(mask, dtype=torch.bool),
            "lengths": torch.tensor([8]),
            "position_ids": torch.arange(8),
        }
    )
    for name in ("input_ids", "hidden_states", "verifier_last_hidden_states", "loss_mask", "position_ids"):
        assert torch.equal(batch[name][0, :7], shifted[name]), name
    assert batch["loss_mask"][0].tolist() == [False] * 3 + [True] * 4 + [False] * 33
    assert batch["position_ids"][0, :7].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert batch["document_ids"][0].tolist() == [0] * 7 + [-1] * 33


def test_every_document_is_packed_once_an_epoch_and_fits(tmp_path: Path) -> None:
    data = packed([write_shard(tmp_path / str(i), samples(20, seed=i)) for i in range(2)])
    for epoch in range(2):
        packs = data.packs(epoch)
        assert sorted((p.shard, p.sample) for pack in packs for p in pack) == [
            (shard, sample) for shard in range(2) for sample in range(20) if sample % 5 != 4
        ]
        assert all(sum(map(len, pack)) <= 40 for pack in packs)
        assert len(packs) < 32, "no two short samples share a pack"
    assert data.packs(0) == data.packs(0) != data.packs(1)


def test_sides_quarantine_and_counts(tmp_path: Path) -> None:
    files = [write_shard(tmp_path / str(i), samples(10, seed=i)) for i in range(2)]
    held_out = packed(files, side="held_out")
    assert {(p.shard, p.sample) for p in held_out.pieces} == {(s, n) for s in range(2) for n in (4, 9)}
    rest = packed(files, quarantine={1: {0, 3}, 0: []})
    assert {p.sample for p in rest.pieces if p.shard == 1} == {1, 2, 5, 6, 7, 8}
    assert {p.sample for p in rest.pieces if p.shard == 0} == {0, 1, 2, 3, 5, 6, 7, 8}


def test_all_tokens_can_be_supervised_and_the_held_out_masks_stay(tmp_path: Path) -> None:
    """Those of the prompt too, but for the first of each document, where a chain would begin in another."""
    files = write_shard(
        tmp_path, [(list(range(10, 26)), [0] * 12 + [1] * 4, "train"), (list(range(10, 20)), [0] * 10, "train")]
    )
    answers, everything = packed([files]), packed([files], supervised="all")
    assert [(piece.sample, piece.supervised) for piece in answers.pieces] == [(0, 4)]
    assert [(piece.sample, piece.supervised) for piece in everything.pieces] == [(0, 13), (1, 7)]
    (pack,) = everything.packs(0)
    batch = everything.load(pack)
    assert batch["loss_mask"].sum() == 20
    for document in (0, 1):
        mask = batch["loss_mask"][batch["document_ids"] == document].tolist()
        assert mask == [False] * 2 + [True] * (len(mask) - 2)
    assert everything.shards[0].loss_mask.sum() == 4, "what a replay walks over"


def test_a_long_sample_is_cut_so_that_each_supervised_token_counts_once_at_each_step(tmp_path: Path) -> None:
    length, steps = 101, 3
    ids = list(range(97)) + [0, 1, 2, 3]
    data = packed([write_shard(tmp_path, [(ids, [0] * 5 + [1] * 96, "train")])], pack_tokens=24, ttt_steps=steps)
    counts = torch.zeros(steps, length, dtype=torch.int64)
    for piece in data.pieces:
        batch = data.load([piece])
        mask, positions, documents = (batch[name][0] for name in ("loss_mask", "position_ids", "document_ids"))
        for step in range(steps):
            for end in range(step, 24):
                if mask[end]:
                    assert documents[end - step] == documents[end], "the chain begins in another document"
                    counts[step, positions[end]] += 1
                    assert batch["input_ids"][0, end] == ids[positions[end]]
    assert counts[:, 5:].eq(1).all() and counts[:, :5].eq(0).all()


def test_one_long_sample_among_short_ones_costs_neither_its_tokens_nor_theirs(tmp_path: Path) -> None:
    short: list[Sample] = [([20 + n, 1, 2, 3, 4, 5], [0, 0, 0, 1, 1, 1], "train") for n in range(6)]
    long: Sample = (list(range(90)), [0] * 5 + [1] * 85, "train")
    data = packed([write_shard(tmp_path, [*short[:3], long, *short[3:]])], pack_tokens=24)
    assert data.cut_samples == 1
    seen: dict[tuple[int, int], int] = {}
    for pack in data.packs(0):
        batch, begin = data.load(pack), 0
        assert batch["input_ids"].shape == (1, 24)
        for number, piece in enumerate(pack):
            here = slice(begin, begin + len(piece))
            assert batch["document_ids"][0, here].eq(number).all()
            for position in batch["position_ids"][0, here][batch["loss_mask"][0, here]].tolist():
                seen[piece.sample, position] = seen.get((piece.sample, position), 0) + 1
            begin += len(piece)
        assert not batch["loss_mask"][0, begin:].any() and batch["document_ids"][0, begin:].eq(-1).all()
    expected = [(sample, at) for sample in range(7) for at in (range(5, 90) if sample == 3 else range(3, 6))]
    assert seen == dict.fromkeys(expected, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_states_come_as_float32_whatever_their_file(tmp_path: Path, dtype: torch.dtype) -> None:
    data = packed([write_shard(tmp_path / "a", samples(3), dtype=dtype)])
    exact = packed([write_shard(tmp_path / "b", samples(3))])
    ours, theirs = data.load(data.packs(0)[0]), exact.load(exact.packs(0)[0])
    assert ours["hidden_states"].dtype == torch.float32
    assert torch.equal(ours["hidden_states"], theirs["hidden_states"].to(dtype).float())
    travelled = data.finished(data.read(data.packs(0)[0], data.stored_dtype), ())  # as they come to a GPU
    assert all(torch.equal(travelled[name], ours[name]) and travelled[name].dtype == torch.float32 for name in STATES)


def test_noise_is_bounded_repeatable_and_on_the_auxiliary_states_alone(tmp_path: Path) -> None:
    files = [write_shard(tmp_path, samples(5))]
    clean, noisy = packed(files), packed(files, noise=0.1)
    pack = clean.packs(0)[0]
    before, after = clean.load(pack, (0, 1)), noisy.load(pack, (0, 1))
    change = (after["hidden_states"] - before["hidden_states"]).abs()
    assert 0.09 < float(change.max()) <= 0.1001
    assert torch.equal(after["verifier_last_hidden_states"], before["verifier_last_hidden_states"])
    assert torch.equal(after["hidden_states"], noisy.load(pack, (0, 1))["hidden_states"])
    assert not torch.equal(after["hidden_states"], noisy.load(pack, (0, 2))["hidden_states"])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["layer.3", "last"])
def test_states_that_are_not_finite_are_named(tmp_path: Path, value: float, name: str) -> None:
    made = samples(1)
    states = {key: torch.zeros(len(made[0][0]), H) for key in ("layer.1", "layer.3", "layer.5", "last")}
    states[name][4, 7] = value
    data = packed([write_shard(tmp_path, made, states)])
    with pytest.raises(UserError, match="not finite in sample 0"):
        data.load(data.packs(0)[0])


def test_nothing_to_train_on_is_an_error(tmp_path: Path) -> None:
    files = write_shard(tmp_path / "masked", [(list(range(9)), [0] * 9, "train"), ([1, 2, 3], [0, 1, 1], "held_out")])
    with pytest.raises(UserError, match="None of the 2 samples"):
        packed([files])
    full = write_shard(tmp_path / "full", samples(3))
    with pytest.raises(UserError, match="3 quarantined"):
        packed([full], quarantine={0: {0, 1, 2}})


def test_files_of_different_shards_are_refused(tmp_path: Path) -> None:
    one, other = write_shard(tmp_path / "1", samples(3)), write_shard(tmp_path / "2", samples(4))
    with pytest.raises(UserError, match="does not belong"):
        packed([ShardFiles(one.tokens, one.masks, one.samples, other.states)])
    with pytest.raises(UserError, match="does not belong"):
        packed([ShardFiles(one.tokens, one.masks, other.samples, one.states)])
    save(other.states, {"layer.1": torch.zeros(3, H)})
    with pytest.raises(UserError, match=r"layer\.3"):
        packed([other])
