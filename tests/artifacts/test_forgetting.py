"""A forgotten conversation is in no blob any more, and only what held it is made again."""

import json
from pathlib import Path

import pytest

from artifacts.forgetting import CONVERSATIONS, SAMPLES, Forgetting, Search, forget
from artifacts.forgotten import Forgotten, id_digest
from artifacts.key import key_of
from artifacts.lineage import Lineage
from artifacts.manifest import digest_bytes
from artifacts.verify import verify
from tasks import formats
from tests.artifacts.pipelines import Pipeline, add_shard, add_training, make_pipeline, samples

FILE_A = digest_bytes(b"/data/a.jsonl")


def search(made: Pipeline, *ids: str) -> Forgetting:
    return Search(made.store, Lineage.of(made.records), ids).run()


def do(made: Pipeline, *ids: str) -> Forgetting:
    found = search(made, *ids)
    forget(made.store, made.records, Lineage.of(made.records), found)
    return found


def gone(made: Pipeline) -> set[str]:
    """Names of outputs that are not in the store any more."""
    return {name for name, ref in made.refs.items() if not made.store.has(ref.digest)}


def test_a_sample_of_a_users_file_takes_its_shard_along_and_no_other(tmp_path: Path) -> None:
    made = make_pipeline(tmp_path)
    found = do(made, "a1")
    assert found.unknown == [] and found.sources == {FILE_A: {id_digest("a1")}} and found.files == {"/data/a.jsonl"}
    assert gone(made) == {
        "corpus a ids.0",
        "corpus a masks.0",
        "hidden_states shard 0 of a states",
        "validation shard 0 of a check",
    }
    assert [record.node for record, _ in found.drafts] == ["first"]
    assert made.store.has(made.refs["training first draft"].digest), "a draft stays until gc"
    forgotten = Forgotten(tmp_path)
    assert forgotten.of(FILE_A) == [id_digest("a1")]
    assert forgotten.of(made.refs["synthesis chunk conversations"].digest) == [], "the key of no other known source changes"
    assert forgotten.of("ef" * 32) == [id_digest("a1")], "a file that has grown holds the conversation still"
    assert len(made.records.paths()) == len(made.keys)


def test_an_answer_of_the_verifier_goes_from_its_copy_too(tmp_path: Path) -> None:
    made = make_pipeline(tmp_path)
    old = made.refs["synthesis chunk conversations"]
    dead = tmp_path / "tmp" / "1234-dead"
    dead.mkdir()
    (dead / "conversations.jsonl").write_text('{"id": "s1", "messages": "secret 1"}')
    do(made, "s1")
    assert not made.store.has(old.digest)
    record = made.records.get("synthesis", made.keys["synthesis chunk"])
    assert record is not None
    new = record.outputs["conversations"]
    lines = (made.store.open(new.digest) / CONVERSATIONS).read_text().splitlines()
    assert json.loads(lines[1]) == {"id_digest": id_digest("s1"), "forgotten_tokens": 4}, "2 of the prompt, 2 of the answer"
    assert [json.loads(line).get("id") for line in lines] == ["s0", None, "s2", "s3"]
    assert new.facts == {"conversations": 3, "tokens": 8}
    assert [one["from"] for one in record.lineage["rewritten"]] == [old.digest]
    lineage = Lineage.of(made.records)
    assert record in lineage.ancestors([made.refs["training first draft"].digest]), "lineage leads past the rewritten copy"
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"secret 1" not in stored and b'"s1"' not in stored and b"secret 2" in stored
    assert Forgotten(tmp_path).of(new.digest) == [], "its row is gone: nothing is left to leave out"


def test_a_row_that_became_no_sample_moved_no_cut(tmp_path: Path) -> None:
    made = make_pipeline(tmp_path)
    rows = [{"id": name, "prompt_ids": [1], "answer_ids": [2] * 5} for name in ("t0", "t0-again")]
    answers = made.blob(
        "conversations", {CONVERSATIONS: "".join(json.dumps(r) + "\n" for r in rows).encode()}, conversations=2, tokens=10
    )
    made.node("synthesis", "twice", {"prompts": "/data/prompts.jsonl"}, {"conversations": answers})
    assert search(made, "t0-again").copies[answers.digest][1] == {"t0-again": 6}, "not cut yet: it would count"
    add_shard(made, "twice", answers, [[("t0", "p2")]])
    assert search(made, "t0-again", "t0").copies[answers.digest][1] == {"t0": 6, "t0-again": 0}
    record = made.records.get("corpus", made.keys["corpus twice"])
    assert record is not None
    parts = {**record.parts, "setting corpus.max_length": "5"}
    made.records.put(record.model_copy(update={"parts": parts, "key": key_of(parts)}))
    assert search(made, "t0").copies[answers.digest][1] == {"t0": 5}, "the longest that a sample may be"


def test_an_id_may_be_a_number_in_a_copy(tmp_path: Path) -> None:
    made = make_pipeline(tmp_path)
    answers = made.blob(
        "conversations", {CONVERSATIONS: b'{"id": 17, "prompt_ids": [1], "answer_ids": [2]}\n'}, conversations=1
    )
    assert list(search(made, "17").copies) == [answers.digest] and search(made, "1").unknown == ["1"]


def test_forgetting_twice_and_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before any of its removals, it leaves what the next attempt finds and finishes."""
    whole, steps = make_pipeline(tmp_path / "whole"), 0
    do(whole, "s1", "a1")
    again = search(whole, "s1", "a1")
    assert again.unknown == [] and again.nothing
    killed = True
    while killed:
        made = make_pipeline(tmp_path / str(steps))
        left = steps

        def delete(digest: str, made: Pipeline = made) -> None:
            nonlocal left
            if left == 0:
                raise KeyboardInterrupt
            left -= 1
            type(made.store).delete(made.store, digest)

        monkeypatch.setattr(made.store, "delete", delete)
        try:
            do(made, "s1", "a1")
            killed = False
        except KeyboardInterrupt:
            monkeypatch.undo()
            do(made, "s1", "a1")
        assert gone(made) == gone(whole) and Forgotten(made.store.root).sources == Forgotten(whole.store.root).sources
        steps += 1
    assert steps == 10, "two shards of four blobs, one copy, and once to the end"


def test_an_unknown_id_and_reports_that_name_one(tmp_path: Path) -> None:
    made = make_pipeline(tmp_path)
    named = made.blob("validation_report", {"report.json": b'{"quarantined": [{"sample": 0, "id": "a0"}]}'}, samples=1)
    other = made.blob("validation_report", {"report.json": b'{"quarantined": [{"sample": 0, "id": "a00"}]}'}, samples=1)
    assert search(made, "a0", "nobody").unknown == ["nobody"]
    do(made, "a0")
    assert not made.store.has(named.digest) and made.store.has(other.digest)
    assert not [finding for finding in verify(made.store, tmp_path / "state", True, lambda *_: None) if finding.damaged]


def test_windows_and_twins_are_counted(tmp_path: Path) -> None:
    made = make_pipeline(tmp_path)
    found = search(made, "a1")
    assert (found.samples, found.twins) == ({"a1": 1}, 1), "s3 has the same text"
    windows = samples([("long", "text"), ("long", "text")])
    made.blob("loss_masks", {"masks.safetensors": b"", SAMPLES: windows}, samples=2)
    assert search(made, "long").samples == {"long": 2}


def test_lists_of_sources_do_not_change_each_others_keys(tmp_path: Path) -> None:
    made = make_pipeline(tmp_path)
    do(made, "a1")
    add_shard(made, "b", "/data/b.jsonl", [[("b0", "1"), ("b1", "2")]])
    add_training(made, "second", ["b"])
    file_b = digest_bytes(b"/data/b.jsonl")
    before = Forgotten(tmp_path).of(file_b)
    do(made, "a2")
    after = Forgotten(tmp_path)
    assert after.of(file_b) == before == [id_digest("a1")]
    assert after.of(FILE_A) == sorted([id_digest("a1"), id_digest("a2")])
    do(made, "b0")
    assert Forgotten(tmp_path).of(file_b) == sorted([id_digest("a1"), id_digest("b0")])


def test_the_file_names_are_those_of_the_stages() -> None:
    assert (SAMPLES, CONVERSATIONS) == (formats.SAMPLES, formats.CONVERSATIONS)
