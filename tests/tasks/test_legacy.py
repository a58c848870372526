"""Legacy samples come in as shards that are, byte for byte, what extraction would have stored; what does not fit is told."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from artifacts.forgetting import Search
from artifacts.forgotten import id_digest
from artifacts.lineage import Lineage
from artifacts.manifest import digest_file
from artifacts.records import Record, Records
from errors import UserError
from kimi_adapters.config import read_config
from kimi_adapters.tensor_file import TensorFile
from kimi_adapters.weights import Checkpoint
from running.identity import FileMemo
from running.job import Job, read_outputs
from tasks import legacy
from tasks.formats import STATES, STATS, TOKENS, read_masks, read_tokens
from tasks.handles import Verifier
from tasks.legacy_samples import check_layers, cut_files, sample_files
from tasks.settings import Settings
from tests.tasks.conftest import FOREIGN, OWN
from tests.tasks.stage_jobs import LAYERS, Bench, Made

Change = Callable[[dict[str, Any]], dict[str, Any] | None]


def save_samples(bench: Bench, shard: Made, folder: Path, dtype: torch.dtype = torch.float32) -> list[Path]:
    """The samples of a shard as v1 files: `loss_mask` by turns a tensor and a list, as it came out of both."""
    folder.mkdir(parents=True)
    ids, offsets = read_tokens(bench.store.folder(shard.ids))
    mask, _ = read_masks(bench.store.folder(shard.masks))
    states = bench.states(shard)
    paths = []
    for number, (start, stop) in enumerate(zip(offsets[:-1], offsets[1:], strict=True)):
        row = torch.from_numpy(mask[start:stop].astype(np.int64))
        sample = {
            "input_ids": torch.from_numpy(ids[start:stop].astype(np.int64)),
            "hidden_states": [torch.from_numpy(array[start:stop]).to(dtype).contiguous() for array in states.values()],
            "loss_mask": row if number % 2 else row.tolist(),
        }
        paths.append(folder / f"data_{number}.pt")
        torch.save(sample, paths[-1])
    return paths


def job_on(bench: Bench, paths: list[Path], events: list[dict[str, Any]], forgotten: tuple[str, ...] = ()) -> Job:
    config = read_config(bench.verifier)
    chosen = {
        "layer_ids": LAYERS,
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "held_out": 0.2,
        "source": "rows_0-2000",
        "forgotten": list(forgotten),
    }
    inputs = {f"sample.{i}": path for i, path in enumerate(paths)}
    job = bench.one_job(chosen, {**inputs, "tokenizer": bench.verifier}, {}, events)
    job.digests |= {name: digest_file(path) for name, path in inputs.items()}
    return job


def take_in(bench: Bench, paths: list[Path], forgotten: tuple[str, ...] = ()) -> Made:
    """Run the stage; its committed outputs."""
    events: list[dict[str, Any]] = []
    legacy.compute(job_on(bench, paths, events, forgotten))
    outputs = read_outputs(json.loads(json.dumps(events[-1])))
    refs = {name: bench.store.commit(sealed) for name, sealed in outputs.items()}
    bench.refs |= {ref.digest: ref for ref in refs.values()}
    return Made(*(refs[name].digest for name in ("ids", "masks", "states", "stats")))


def test_the_round_trip_gives_the_bytes_that_extraction_stored(bench: Bench, clean: Made, tmp_path: Path) -> None:
    made = take_in(bench, save_samples(bench, clean, tmp_path / "rows"))
    assert made.ids == clean.ids and made.states == clean.states and made.stats == clean.stats
    mask, lines = read_masks(bench.store.folder(made.masks))
    assert np.array_equal(mask, read_masks(bench.store.folder(clean.masks))[0])
    assert all(line["slices"]["source"] == "rows_0-2000" and line["hash"] and not line["greedy"] for line in lines)
    assert {line["side"] for line in lines} <= {"train", "held_out"} and len({line["id"] for line in lines}) == OWN + FOREIGN


def test_the_dtype_is_kept_and_validation_takes_them(bench: Bench, clean: Made, tmp_path: Path) -> None:
    made = take_in(bench, save_samples(bench, clean, tmp_path / "rows", torch.bfloat16))
    states = TensorFile(bench.store.folder(made.states) / STATES)
    assert {entry.dtype for entry in states.entries.values()} == {"BF16"} and bench.refs[made.states].facts[
        "dtype"
    ] == "bfloat16"
    found = bench.merge(bench.check(made))
    assert found.report["faults"] == [] and found.report["read"] == OWN + FOREIGN and found.quarantine == {}


def test_faults_of_states_that_came_in_are_found(bench: Bench, clean: Made, tmp_path: Path) -> None:
    paths = save_samples(bench, clean, tmp_path / "rows")
    sample = torch.load(paths[4])
    sample["hidden_states"][1][3, 17] = torch.nan
    torch.save(sample, paths[4])
    checkpoint = Checkpoint(bench.verifier)
    found = bench.merge(bench.check(made := take_in(bench, paths)))
    assert found.quarantine == {made.ids: [4]}
    for path in paths:  # the first speculators normed the last state
        sample = torch.load(path)
        last = sample["hidden_states"][-1]
        eps = checkpoint.config.rms_norm_eps
        sample["hidden_states"][-1] = last * torch.rsqrt(last.pow(2).mean(-1, keepdim=True) + eps) * checkpoint.norm().float()
        torch.save(sample, path)
    (check,) = bench.check(take_in(bench, paths))
    assert bench.refs[check].facts["faults"] == ["its last state has already been through the final norm"]


def test_a_forgotten_sample_stays_out(bench: Bench, clean: Made, tmp_path: Path) -> None:
    paths = save_samples(bench, clean, tmp_path / "rows")
    names = [line["id"] for line in read_masks(bench.store.folder(take_in(bench, paths).masks))[1]]
    made = take_in(bench, paths, (id_digest(names[2]),))
    assert [line["id"] for line in read_masks(bench.store.folder(made.masks))[1]] == [n for n in names if n != names[2]]


def test_forgetting_finds_the_files_and_all_that_was_made_of_them(bench: Bench, clean: Made, tmp_path: Path) -> None:
    paths = save_samples(bench, clean, tmp_path / "rows")[:3]
    made = take_in(bench, paths)
    outputs = {name: bench.refs[digest] for name, digest in vars(made).items()}
    inputs = {f"sample.{i}": {"digest": digest_file(path), "blob": None, "path": str(path)} for i, path in enumerate(paths)}
    records = Records(tmp_path / "records")
    records.put(Record(key="0" * 64, stage="legacy", node="a", parts={}, outputs=outputs, lineage={"inputs": inputs}))
    name = read_masks(bench.store.folder(made.masks))[1][1]["id"]
    found = Search(bench.store, Lineage.of(records), [name]).run()
    assert set(found.sources) == {source["digest"] for source in inputs.values()} and found.files == set(map(str, paths))
    assert set(vars(made).values()) <= set(found.blobs) and all(ids == {id_digest(name)} for ids in found.sources.values())


def stacked(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "hidden_states": torch.stack(sample["hidden_states"])}


UNFIT: dict[str, tuple[Change, str]] = {
    "one tensor": (stacked, "no list of tensors"),
    "joined": (lambda s: {**s, "hidden_states": torch.cat(s["hidden_states"], -1)}, "no list of tensors"),
    "v0": (lambda s: {"input_ids": s["input_ids"], "hidden_state": 1, "target": 2}, "it has not input_ids"),
    "a list": (lambda s: [s], "it has not input_ids"),  # type: ignore[dict-item, return-value]
    "layers": (lambda s: {**s, "hidden_states": s["hidden_states"][1:]}, "states of 3 layers where the settings make it 4"),
    "width": (lambda s: {**s, "hidden_states": [h[:, 1:].contiguous() for h in s["hidden_states"]]}, "its states are"),
    "one token less": (lambda s: {**s, "hidden_states": [h[1:] for h in s["hidden_states"]]}, "its states are"),
    "mask": (lambda s: {**s, "loss_mask": s["loss_mask"][1:]}, "and a mask of"),
    "mask of weights": (lambda s: {**s, "loss_mask": [2] * len(s["input_ids"])}, "other values than 0 and 1"),
    "no tokens": (lambda s: {**s, "input_ids": [], "loss_mask": []}, "has 0 token ids"),
    "vocabulary": (lambda s: {**s, "input_ids": s["input_ids"] + 49152}, "outside this verifier's vocabulary"),
    "half": (lambda s: {**s, "hidden_states": [h.half() for h in s["hidden_states"]]}, "its states are F16"),
}


@pytest.fixture(scope="module")
def one_sample(bench: Bench, clean: Made, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(save_samples(bench, clean, tmp_path_factory.mktemp("samples") / "rows")[0])
    return found


def planned(bench: Bench, folder: Path, **data: Any) -> list[Any]:
    """The nodes that a plan makes, which reads the first file of each folder."""
    config = read_config(bench.verifier)
    facts = {name: getattr(config, name) for name in ("hidden_size", "vocab_size", "num_layers")} | {
        "roles": {"tokenizer": "t"}
    }
    verifier = Verifier("v", facts, "", None, "smollm2")
    settings = Settings.model_validate(
        {"data": {"legacy_states": [str(folder)]}, "hidden_states": {"layer_ids": LAYERS}, "corpus": {"shard_tokens": 150}}
        | data
    )
    return legacy.nodes(settings, LAYERS, verifier, FileMemo(folder.parent / "state"), lambda digest: [])


@pytest.mark.parametrize("case", UNFIT)
def test_what_does_not_fit_is_one_sentence_in_the_plan(
    bench: Bench, one_sample: dict[str, Any], tmp_path: Path, case: str
) -> None:
    change, expected = UNFIT[case]
    (tmp_path / "rows").mkdir()
    torch.save(change(dict(one_sample)), tmp_path / "rows" / "data_0.pt")
    with pytest.raises(UserError, match=expected) as caught:
        planned(bench, tmp_path / "rows")
    assert "data_0.pt" in str(caught.value) and len(str(caught.value).splitlines()) == 1


def test_a_plan_cuts_folders_into_shards(bench: Bench, clean: Made, tmp_path: Path) -> None:
    paths = save_samples(bench, clean, tmp_path / "rows")
    nodes = planned(bench, tmp_path / "rows")
    taken = [[node.inputs[f"sample.{i}"].path for i in range(len(node.inputs) - 1)] for node in nodes]
    assert [path for one in taken for path in one] == [str(path) for path in paths] and len(nodes) > 1
    assert nodes[0].output_bytes == sum(path.stat().st_size for path in map(Path, taken[0]))
    tokens = bench.refs[clean.ids].facts.get("tokens") or len(read_tokens(bench.store.folder(clean.ids))[0])
    assert tokens <= sum(node.tokens for node in nodes) < 1.3 * tokens


def test_a_changed_file_is_told(bench: Bench, clean: Made, tmp_path: Path) -> None:
    paths = save_samples(bench, clean, tmp_path / "rows")
    job = job_on(bench, paths, [])
    paths[3].write_bytes(paths[2].read_bytes())
    with pytest.raises(UserError, match=r"data_3\.pt changed while"):
        legacy.compute(job)


def test_layers_by_the_folders_own_word(tmp_path: Path) -> None:
    """v1 names the layer that a state leaves: [2, 30, 58, 60] of 61 layers are our 3, 31, 59 and the last."""
    with pytest.raises(UserError, match="nothing says which layers"):
        check_layers(tmp_path, [3, 31, 59], False, 61)
    check_layers(tmp_path, [3, 31, 59], True, 61)
    (tmp_path / "data_config.json").write_text(json.dumps({"hidden_states": {"layer_ids": [2, 30, 58, 60]}}))
    check_layers(tmp_path, [3, 31, 59], False, 61)
    with pytest.raises(UserError, match=r"set it to \[3, 31, 59\]"):
        check_layers(tmp_path, [2, 30, 58], False, 61)
    with pytest.raises(UserError, match="leaves layer"):
        check_layers(tmp_path, [3, 31, 59], False, 62)
    (tmp_path / "data_config.json").write_text("{}")
    with pytest.raises(UserError, match="does not name the layers"):
        check_layers(tmp_path, [3, 31, 59], False, 61)


def test_folders_that_are_none(tmp_path: Path) -> None:
    for folder in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(UserError, match="correct data.legacy_states"):
            sample_files(folder)
    for name in ("data_10.pt", "data_2.pt", "data_1.pt"):
        (tmp_path / name).touch()
    assert [path.name for path in sample_files(tmp_path)] == ["data_1.pt", "data_2.pt", "data_10.pt"]


@given(st.lists(st.integers(1, 500), max_size=40), st.integers(1, 50), st.integers(1, 400))
def test_a_new_file_moves_no_shard_but_the_last(sizes: list[int], token_bytes: int, shard_tokens: int) -> None:
    cuts = cut_files(sizes, token_bytes, shard_tokens)
    assert [n for cut in cuts for n in cut] == list(range(len(sizes)))
    assert cut_files([*sizes, 100], token_bytes, shard_tokens)[: len(cuts) - 1] == cuts[:-1]


def test_a_truncated_ids_file_is_not_what_later_stages_read(bench: Bench, clean: Made, tmp_path: Path) -> None:
    """The artifacts are of the kinds that later stages open, with their files."""
    made = take_in(bench, save_samples(bench, clean, tmp_path / "rows")[:2])
    for digest, name, kind in (
        (made.ids, TOKENS, "token_shard"),
        (made.states, STATES, "hidden_states"),
        (made.stats, STATS, "state_stats"),
    ):
        assert (bench.store.folder(digest) / name).exists() and bench.refs[digest].kind == kind
