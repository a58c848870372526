"""A full disk at every writer: one sentence, and what was there stays whole. On a small tmpfs, which needs root to mount."""

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from artifacts import forgetting
from artifacts.aliases import Aliases
from artifacts.collect import collect, collection
from artifacts.disk import is_full
from artifacts.forgotten import Forgotten
from artifacts.lineage import Lineage
from artifacts.manifest import Ref
from artifacts.records import Records
from artifacts.runs import Runs
from artifacts.stage import Node, Stage
from artifacts.store import Store
from artifacts.verify import verify
from artifacts.writer import ArtifactWriter
from errors import UserError
from running.devices import Device
from running.launch import Children, Order, Place, run_child
from running.locks import key_lock
from tests.artifacts.pipelines import Pipeline, make_pipeline
from tests.projects import copy_checkout

FULL = r"^the disk of .* is full: free space there, .*; what was finished is kept$"
ACROSS = 60_000  # bytes: past the buffers of Python's files


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk: Path) -> Path:
    """Take every free byte of a disk."""
    filler = disk / "filler"
    fd = os.open(filler, os.O_WRONLY | os.O_CREAT)
    try:
        while True:
            os.write(fd, b"x" * 4096)
    except OSError as error:
        assert error.errno == errno.ENOSPC
    finally:
        os.close(fd)
    return filler


def is_whole(made: Pipeline, state: Path) -> bool:
    """Every old artifact and record as it was."""
    damaged = [finding for finding in verify(made.store, state, True, lambda *_: None) if finding.damaged]
    records = [made.records.get(name.split()[0], key) for name, key in made.keys.items()]
    return not damaged and None not in records and all(made.store.has(ref.digest) for ref in made.refs.values())


def _artifact_file(made: Pipeline, state: Path, size: int) -> Callable[[], object]:
    workspace = made.store.root / "tmp" / "mine"
    workspace.mkdir()
    return lambda: ArtifactWriter("quarantine", workspace).write("big.bin", b"x" * size)


def _commit(made: Pipeline, state: Path, workspace: Path) -> Callable[[], object]:
    writer = ArtifactWriter("quarantine", workspace)
    writer.write("small.bin", b"x")
    sealed = writer.seal(samples=0)

    def commit() -> object:
        assert made.store.commit(sealed) == sealed.ref
        return made.store.open(sealed.ref.digest)

    return commit


def _record(made: Pipeline, state: Path) -> Callable[[], object]:
    old = Records(made.store.root).get("training", made.keys["training first"])
    assert old is not None
    return lambda: made.records.put(old.model_copy(update={"node": "x" * ACROSS}))


def _run(made: Pipeline, state: Path) -> Callable[[], object]:
    run = made.run("20261101T000000-aaaa", ["training first"])
    return lambda: Runs(made.store.root).put(run.model_copy(update={"name": "x" * ACROSS}))


def _alias(made: Pipeline, state: Path) -> Callable[[], object]:
    return lambda: Aliases(state).move("ab" * 32, "champion", made.refs["training first draft"].digest, None, "x" * ACROSS)


def _forgotten(made: Pipeline, state: Path) -> Callable[[], object]:
    return lambda: Forgotten(made.store.root).put({"cd" * 32: ["ab" * 32]})


WRITERS: dict[str, Callable[[Pipeline, Path], Callable[[], object]]] = {
    "a file of an artifact": lambda made, state: _artifact_file(made, state, 2 * ACROSS),
    "a small file of an artifact": lambda made, state: _artifact_file(made, state, 10),
    "a record": _record,
    "a run manifest": _run,
    "an alias": _alias,
    "the list of forgotten conversations": _forgotten,
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_full_disk_is_one_sentence_and_what_was_there_is_whole(small_disk: Path, writer: str) -> None:
    made, state = make_pipeline(small_disk / "store"), small_disk / "state"
    write = WRITERS[writer](made, state)
    filler = fill(small_disk)
    with pytest.raises(UserError, match=FULL):
        write()
    assert is_whole(made, state)
    assert not [path for path in (small_disk / "store").rglob(".*.json.*") if path.is_file()], "no half-written file stays"
    filler.unlink()
    if "file of an artifact" not in writer:  # the child writes its whole artifact again
        write()
    assert is_whole(made, state)


def test_a_commit_onto_a_full_disk_can_be_done_again(small_disk: Path) -> None:
    made, state = make_pipeline(small_disk / "store"), small_disk / "state"
    with made.store.workspace() as workspace:
        commit = _commit(made, state, workspace)
        filler = fill(small_disk)
        with pytest.raises(UserError, match=FULL):
            commit()
        assert is_whole(made, state)
        filler.unlink()
        commit()
    assert is_whole(made, state)


def test_forgetting_on_a_full_disk_removes_nothing(small_disk: Path) -> None:
    made, state = make_pipeline(small_disk / "store"), small_disk / "state"
    lineage = Lineage.of(made.records)
    found = forgetting.Search(made.store, lineage, ["s1"]).run()
    filler = fill(small_disk)
    with pytest.raises(UserError, match=FULL):
        forgetting.forget(made.store, made.records, lineage, found)
    assert is_whole(made, state)
    filler.unlink()
    forgetting.forget(made.store, made.records, lineage, found)
    assert b"s1" not in b"".join(p.read_bytes() for p in made.store.root.rglob("*.jsonl"))


FILLING_STAGE = """
import tempfile

def compute(job):
    if job.settings["where"] == "elsewhere":
        try:
            with job.writer("quarantine").open("big.bin") as file:
                while True:
                    file.write(bytes(4096))
        except Exception:
            pass
        tempfile.gettempdir()  # finds no folder that it can write to, and does not say why
    if job.settings["where"] == "scratch":
        with open(job.scratch / "checkpoint", "wb") as file:
            while True:
                file.write(bytes(4096))
    with job.writer("quarantine").open("big.bin") as file:
        while True:
            file.write(bytes(4096))
"""


@pytest.mark.parametrize("where", ["scratch", "workspace", "elsewhere"])
def test_a_childs_full_disk_is_the_runs_sentence(tmp_path: Path, small_disk: Path, where: str) -> None:
    """Its log lies on the full disk, too, and cannot take the traceback."""
    snapshot = tmp_path / "code"
    snapshot.mkdir()
    copy_checkout(snapshot)
    (snapshot / "tasks/filling.py").write_text(FILLING_STAGE)
    made, state = make_pipeline(small_disk / "store"), small_disk / "state"
    node = Node(Stage("filling", module="tasks.filling", libraries=()), "", {"where": where}, {})
    run_folder = small_disk / "run"
    run_folder.mkdir()
    with made.store.workspace() as workspace, key_lock(state, "k", "filling", lambda: None) as lock:
        place = Place(snapshot, run_folder, workspace, state / "cache", (made.store.root, state), Children())
        order = Order(node, "k", {}, state / "work" / "k", lock)
        with pytest.raises(UserError, match=FULL):
            run_child(place, [order], Device("cpu:0", 1), lambda *_: None, lambda *_: None)
    assert is_whole(made, state)


def test_libraries_say_it_in_words() -> None:
    assert is_full(RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"))
    assert not is_full(RuntimeError("Permission denied"))


def test_the_store_never_grows_past_its_limit(tmp_path: Path) -> None:
    made = make_pipeline(tmp_path)
    used = made.store.used_bytes()
    bounded = Pipeline(Store(tmp_path, max_bytes=used + 1000), made.records)
    fits = bounded.blob("quarantine", {"a": b"x" * 900}, samples=0)
    with pytest.raises(
        UserError, match=r"quarantine \w{12} of 101 bytes would take the store .* past store.max_bytes .*`eyas gc"
    ):
        bounded.blob("quarantine", {"b": b"y" * 101}, samples=0)
    assert bounded.store.used_bytes() == used + 900 and is_whole(made, tmp_path / "state")
    other = Pipeline(Store(tmp_path, max_bytes=used + 1000), made.records)  # another process counts what this one added
    other.blob("quarantine", {"c": b"z" * 100}, samples=0)
    assert bounded.store.used_bytes() == used + 1000
    bounded.store.delete(fits.digest)
    assert isinstance(bounded.blob("quarantine", {"b": b"y" * 101}, samples=0), Ref)
    assert other.store.used_bytes() == used + 201


def test_what_was_put_aside_counts_until_it_is_collected(tmp_path: Path) -> None:
    """Else a repair and its producer's next run would take the disk past the limit by what was damaged."""
    made = make_pipeline(tmp_path)
    bounded = Pipeline(Store(tmp_path, max_bytes=made.store.used_bytes() + 1000), made.records)
    hurt = bounded.blob("quarantine", {"a": b"x" * 900}, samples=0)
    bounded.store.put_aside(bounded.store.folder(hurt.digest))
    assert bounded.store.used_bytes() == made.store.used_bytes()
    with pytest.raises(UserError, match="past store.max_bytes"):
        bounded.blob("quarantine", {"a": b"x" * 900}, samples=0)
    collect(made.store, collection(made.store, {ref.digest for ref in made.refs.values()}), lambda *_: None)
    assert bounded.blob("quarantine", {"a": b"x" * 900}, samples=0) == hurt
