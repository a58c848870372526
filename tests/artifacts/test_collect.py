"""What gc keeps: aliases, recent runs, and of everything else what cannot be made again while something of it lives."""

import threading
from pathlib import Path

import pytest

from artifacts.collect import collect, collection, live, served
from artifacts.lineage import Lineage
from artifacts.records import Records
from artifacts.runs import Runs
from artifacts.store import Store
from errors import UserError
from tests.artifacts.pipelines import Pipeline, add_shard, add_training, make_pipeline


def kept(made: Pipeline, named: list[str], runs: int) -> set[str]:
    """Names of the outputs that a collection leaves, after it was done; records must all be there still."""
    keep = live(Lineage.of(made.records), named, Runs(made.store.root).roots(runs))
    chosen = collection(made.store, keep)
    before = made.store.used_bytes()
    freed = chosen.freed
    collect(made.store, chosen, lambda *_: None)
    assert made.store.used_bytes() == before - freed
    assert len(made.records.paths()) == len(made.keys)
    return {name for name, ref in made.refs.items() if made.store.has(ref.digest)}


def of(made: Pipeline, *kinds: str) -> set[str]:
    return {name for name, ref in made.refs.items() if ref.kind in kinds}


def test_an_alias_keeps_its_draft_and_the_answers_it_came_from(tmp_path: Path) -> None:
    """Shards, states and checks can be made again; the answers of the verifier and the draft cannot."""
    made = make_pipeline(tmp_path)
    draft = made.refs["training first draft"]
    assert kept(made, [draft.digest], 3) == of(made, "draft", "conversations")


def test_the_export_of_what_an_alias_names_stays(tmp_path: Path) -> None:
    """An engine may serve it from the store."""
    made = make_pipeline(tmp_path)
    add_shard(made, "b", "/data/b.jsonl", [[("b0", "1"), ("b1", "2")]])
    add_training(made, "second", ["b"])
    named = served(Lineage.of(made.records), [made.refs["training first draft"].digest])
    exports = {name for name in of(made, "export") if made.refs[name].digest in named}
    assert exports == {"export first export"}


def test_recent_runs_keep_all_that_they_used(tmp_path: Path) -> None:
    made = make_pipeline(tmp_path)
    old = set(made.refs)
    made.run("20261101T000000-aaaa", list(made.keys))
    add_shard(made, "b", "/data/b.jsonl", [[("b0", "1"), ("b1", "2")]])
    add_training(made, "second", ["b"])
    newer = [name for name in made.keys if name.endswith(" b") or "second" in name]
    made.run("20261102T000000-bbbb", newer)
    everything = set(made.refs)
    assert kept(made, [], 2) == everything
    assert kept(made, [], 1) == everything - old


def test_runs_that_ended_early_do_not_take_what_the_next_one_needs(tmp_path: Path) -> None:
    """Three tries that a gate stopped, after a night's run: its states stay, and what the tries made stays, too."""
    made = make_pipeline(tmp_path)
    old = set(made.refs)
    made.run("20261101T000000-aaaa", list(made.keys))
    add_shard(made, "b", "/data/b.jsonl", [[("b0", "1")]])
    for number, state in enumerate(("failed", "running", "failed")):
        made.run(f"2026110{number + 2}T000000-bbbb", ["synthesis chunk", "corpus b"], state=state)
    tried = {name for name in made.refs if name.startswith("corpus b ")}
    assert kept(made, [], 3) == old | tried
    assert [run.state for run in Runs(tmp_path).roots(1)] == ["failed", "completed"] and Runs(tmp_path).roots(0) == []


def test_smoke_runs_do_not_take_what_the_last_whole_run_needs(tmp_path: Path) -> None:
    made = make_pipeline(tmp_path)
    old = set(made.refs)
    made.run("20261101T000000-aaaa", list(made.keys))
    add_shard(made, "b", "/data/b.jsonl", [[("b0", "1")]])
    for number in (2, 3, 4):
        made.run(f"2026110{number}T000000-bbbb", ["synthesis chunk", "corpus b"], smoke=True)
    tried = {name for name in made.refs if name.startswith("corpus b ")}
    assert kept(made, [], 3) == old | tried


def test_a_parent_in_need_stays(tmp_path: Path) -> None:
    """A draft that another began with, and the answers that only the parent saw, though no run and no alias names them."""
    made = make_pipeline(tmp_path)
    parent = made.refs["training first draft"]
    add_shard(made, "b", "/data/b.jsonl", [[("b0", "1"), ("b1", "2")]])
    child = add_training(made, "second", ["b"], parent=parent)
    alive = kept(made, [child.digest], 0)
    assert {"training first draft", "training second draft", "synthesis chunk conversations"} == alive
    grand = add_training(made, "third", ["b"], parent=child)
    made.store.delete(child.digest)
    assert {"training first draft", "synthesis chunk conversations"} < kept(made, [grand.digest], 0), "by records, past a gap"


def test_records_that_do_not_say_whether_they_can_be_made_again(tmp_path: Path) -> None:
    made = make_pipeline(tmp_path)
    by_stage = {r.stage: r.reproducible for records in Lineage.of(made.records).makers.values() for r in records}
    assert {stage for stage, again in by_stage.items() if not again} == {"synthesis", "training"}
    made.node("vocabulary", "odd", {}, {}, reproducible=False)
    odd = made.records.get("vocabulary", made.keys["vocabulary odd"])
    assert odd is not None and not odd.reproducible


def test_a_killed_run_keeps_what_it_has_recorded(tmp_path: Path) -> None:
    made = make_pipeline(tmp_path)
    old = set(made.refs)
    made.run("20261102T000000-bbbb", ["synthesis chunk"], state="running")
    add_shard(made, "b", "/data/b.jsonl", [[("b0", "1"), ("b1", "2")]])
    assert kept(made, [], 3) == (set(made.refs) - old) | {"synthesis chunk conversations"}


def test_folders_without_manifest_and_dead_workspaces_go(tmp_path: Path) -> None:
    made = make_pipeline(tmp_path)
    stray = made.store.folder("ab" * 32)
    stray.mkdir(parents=True)
    (stray / "file").write_bytes(b"x" * 100)
    dead = tmp_path / "tmp" / "1234-dead"
    dead.mkdir()
    (dead / ".lock").touch()
    made.run("20261101T000000-aaaa", list(made.keys))
    chosen = collection(made.store, live(Lineage.of(made.records), [], Runs(tmp_path).newest(1)))
    assert (chosen.gone, chosen.stray, chosen.freed) == ([], [stray], 100)
    collect(made.store, chosen, lambda *_: None)
    assert not stray.exists() and not dead.exists() and all(made.store.has(ref.digest) for ref in made.refs.values())


def test_nothing_is_collected_beside_a_run(tmp_path: Path) -> None:
    store, entered = Store(tmp_path), threading.Event()
    sentence = r"a run uses the store .*: start `eyas gc` again when it has ended$"
    with store.in_use(), Store(tmp_path).in_use(), pytest.raises(UserError, match=sentence), store.alone("gc"):
        pass

    def run() -> None:
        with store.in_use():
            entered.set()

    with store.alone("gc"):
        thread = threading.Thread(target=run)
        thread.start()
        assert not entered.wait(0.2), "a run waits while blobs are removed"
    assert entered.wait(10)
    thread.join()


def test_a_damaged_run_manifest_is_passed_over_for_an_older_one(tmp_path: Path) -> None:
    made = make_pipeline(tmp_path)
    made.run("20261101T000000-aaaa", list(made.keys))
    made.run("20261102T000000-bbbb", [])
    (tmp_path / "runs" / "20261102T000000-bbbb.json").write_bytes(b"{}")
    assert [run.run for run in Runs(tmp_path).newest(1)] == ["20261101T000000-aaaa"]
    assert Records(tmp_path).paths()
