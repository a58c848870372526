"""What is left out over all shards: duplicates, held-out samples that train gives away, outlying norms of a corpus."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from artifacts.store import Store
from artifacts.writer import ArtifactWriter
from tasks.arrays import write_arrays
from tasks.checked_corpus import CheckedCorpus
from tasks.sample_decisions import Drop, Reason, drops_of, norm_limits, reasons_of
from tasks.settings import ValidationSettings
from tests.kimi_adapters.llama_fixtures import write_tiny_llama
from tests.tasks.stage_jobs import Bench, Made, Text

SETTINGS = ValidationSettings().model_dump()


def hashed(name: str) -> str:
    return hashlib.blake2b(name.encode(), digest_size=16).hexdigest()


def talk(text: str, side: str = "train", first: str = "", window: int = 0, length: int = 12) -> Text:
    """A sample whose conversation is ``text`` and whose first user turn is ``first``."""
    more = {"hash": hashed(text), "first": hashed(first or text), "window": window}
    return Text(list(range(5, 5 + length)), [0] * 4 + [1] * (length - 4), side, more)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A store, and a verifier of a handful of numbers: what is tested here needs no states of a real one."""
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_llama(folder)
    return Bench(tmp_path_factory.mktemp("narrow"), folder)


def checked(bench: Bench, *shards: list[Text]) -> tuple[list[Made], list[str]]:
    """Shards with states, and their checks; the ids of each are made different."""
    made = []
    for number, texts in enumerate(shards):
        made.append(bench.shard([replace(text, ids=[number + 3, *text.ids[1:]]) for text in texts]))
    bench.extract(*made)
    return made, bench.check(*made, read_share=0.1)


def test_of_equal_conversations_the_first_stays_and_train_goes_before_held_out(narrow: Bench) -> None:
    shards, checks = checked(
        narrow,
        [talk("a"), talk("b", "held_out"), talk("c", "held_out")],
        [talk("b"), talk("a"), talk("d")],
        [talk("c", "held_out"), talk("d"), talk("e")],
    )
    found = narrow.merge(checks)
    assert found.drop == {shards[0].ids: [1], shards[1].ids: [1], shards[2].ids: [0, 1]}
    assert found.report["dropped"] == {Drop.DUPLICATE.value: 4} and found.quarantine == {}
    assert found.report["left"] == {"train": 4, "held_out": 1}


def test_a_held_out_sample_whose_question_train_has_goes(narrow: Bench) -> None:
    shards, checks = checked(
        narrow,
        [talk("x1", "held_out", first="hello"), talk("y", "held_out", first="other")],
        [talk("x2", first="hello"), talk("x3", first="hello"), talk("y2", "held_out", first="other")],
    )
    found = narrow.merge(checks)
    assert found.drop == {shards[0].ids: [0]}, "within one side a first user turn may come again"
    assert found.report["dropped"] == {Drop.IN_TRAIN.value: 1}


def test_windows_of_a_conversation_are_no_copies_of_one_another(narrow: Bench) -> None:
    long = [talk("long", window=w) for w in range(3)]
    shards, checks = checked(narrow, [talk("a"), *long[:2]], [long[2], talk("b")], [*long, talk("c")])
    assert narrow.merge(checks).drop == {shards[2].ids: [0, 1, 2]}


def test_a_shard_that_stood_before_is_left_out_whole_and_one_of_its_copies_stays(narrow: Bench) -> None:
    """Two equal shards have one digest, which the lists cannot tell apart."""
    shard = narrow.shard([talk("a"), talk("b", "held_out")])
    narrow.extract(shard)
    found = narrow.merge(narrow.check(shard, shard))
    assert found.drop == {} and found.report["dropped"] == {Drop.DUPLICATE.value: 2}
    assert found.report["left"] == {"train": 1, "held_out": 1}


def test_a_quarantined_sample_does_not_drive_out_its_copy(narrow: Bench) -> None:
    bad = replace(talk("a"), mask=[0] * 12)
    shards, checks = checked(narrow, [bad, talk("z")], [talk("a"), talk("b", "held_out", first="z2")])
    found = narrow.merge(checks)
    assert found.quarantine == {shards[0].ids: [0]} and found.drop == {}


def test_samples_without_hashes_are_all_kept(narrow: Bench) -> None:
    plain = [replace(talk("a"), more={}), replace(talk("a", "held_out"), more={"hash": None, "first": None, "slices": {}})]
    _, checks = checked(narrow, plain, plain)
    found = narrow.merge(checks)
    assert found.drop == {} and found.report["slices"] == []


def test_norms_are_judged_against_the_whole_corpus(narrow: Bench) -> None:
    """A shard whose every sample is off would look sound by its own median."""
    shards, checks = checked(narrow, *[[talk(f"{s}{i}") for i in range(4)] for s in "abcde"])
    states = narrow.states(shards[2])
    off = narrow.with_states(shards[2], {name: 3 * array for name, array in states.items()})
    found = narrow.merge([*checks[:2], *narrow.check(off, read_share=0.1), *checks[3:]])
    assert found.quarantine == {off.ids: [0, 1, 2, 3]} and found.report["reasons"] == {Reason.OUTLYING_NORM.value: 4}
    assert narrow.merge(checks).quarantine == {}
    assert narrow.merge([*checks[:2], *narrow.check(off, read_share=0.1), *checks[3:]], norm_ratio=4).quarantine == {}


def corpus_of(folder: Path, shards: list[list[tuple[int, int, bool, bool]]]) -> CheckedCorpus:
    """A checked corpus of (conversation, first turn, held out, in quarantine) without going through stages."""
    store, folders = Store(folder / "store"), []
    (folder / "work").mkdir(exist_ok=True)
    for number, rows in enumerate(shards):
        n = len(rows)
        writer = ArtifactWriter("shard_check", folder / "work")
        summary = {"ids": f"{number:064x}", "states": ["last"], "slices": {}, "evidence": {"agreed": [0, 0, 0]}, "faults": []}
        writer.write("check.json", json.dumps(summary).encode())
        hashes = np.array([[*row[0].to_bytes(16), *row[1].to_bytes(16)] for row in rows], np.uint8).reshape(n, 32)
        zeros = {
            name: np.zeros(n, np.int64) for name in ("foreign", "repetition", "loop", "scored", "agreed", "window", "score")
        }
        with writer.open("check.safetensors") as file:
            arrays = {
                **zeros,
                "foreign": np.zeros(n, bool),
                "norm.last": np.ones(n, np.float32),
                "finite.last": ~np.array([row[3] for row in rows], bool),
                "same.last": np.zeros(n, np.float32),
                "tokens": np.full(n, 9),
                "supervised": np.full(n, 5),
                "greedy": np.zeros(n, bool),
                "held_out": np.array([row[2] for row in rows], bool),
                "hash": np.ascontiguousarray(hashes[:, :16]),
                "first": np.ascontiguousarray(hashes[:, 16:]),
                "slices": np.zeros((n, 0), np.int64),
            }
            write_arrays(file, arrays)
        writer.write("ids.json", json.dumps([f"{number}-{i}" for i in range(n)]).encode())
        folders.append(store.folder(store.commit(writer.seal()).digest))
    return CheckedCorpus.read(folders)


ROW = st.tuples(st.integers(0, 6), st.integers(0, 4), st.booleans(), st.booleans())


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(shards=st.lists(st.lists(ROW, min_size=1, max_size=6), min_size=1, max_size=5))
def test_what_stays_is_one_of_each_and_no_question_stands_on_both_sides(
    tmp_path_factory: pytest.TempPathFactory, shards: list[list[tuple[int, int, bool, bool]]]
) -> None:
    corpus = corpus_of(tmp_path_factory.mktemp("any"), shards)
    reasons = reasons_of(corpus, norm_limits(corpus, SETTINGS), SETTINGS)
    aside = np.logical_or.reduce(list(reasons.values()))
    rows = [row for shard in shards for row in shard]
    assert aside.tolist() == [row[3] for row in rows]
    dropped = np.logical_or.reduce(list(drops_of(corpus, aside).values()))
    assert not (aside & dropped).any()
    kept = [row for row, out in zip(rows, aside | dropped, strict=True) if not out]
    conversations = [row[0] for row in kept if row[0]]
    assert len(conversations) == len(set(conversations)), "0 stands for no hash"
    train = {row[1] for row in kept if not row[2]} - {0}
    assert not train & {row[1] for row in kept if row[2]}
    fit = {row[0] for row in rows if not row[3] and not row[2] and row[0]}
    assert fit <= set(conversations), "of what train could have, one copy stays on its side"
