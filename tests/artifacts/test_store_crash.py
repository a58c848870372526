"""The store killed at every step of a commit, and at random: nothing that finished is lost, nothing half done counts."""

import builtins
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from artifacts.key import key_of
from artifacts.manifest import MANIFEST_NAME, Ref
from artifacts.records import Record, Records
from artifacts.store import Store
from artifacts.verify import verify
from artifacts.writer import ArtifactWriter, HashedFile

STEPS = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree"}
RANDOM_KILLS = 200


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: a kill loses no page cache, so that a slow disk would only cost time."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as name:
        yield Path(name)


def forked(work: Callable[[], None]) -> int:
    """A child process that does ``work`` and ends; its id."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid


def finish(root: Path, name: str, content: bytes) -> tuple[Ref, str]:
    """Write, commit and record one artifact; its reference and key."""
    store, records = Store(root), Records(root)
    with store.workspace() as workspace:
        writer = ArtifactWriter("quarantine", workspace)
        writer.write("one.bin", content)
        writer.write("sub/two.bin", content[::-1])
        ref = store.commit(writer.seal(samples=0))
    parts = {"name": name}
    record = Record(key=key_of(parts), stage="validation", node=name, parts=parts, outputs={"quarantine": ref}, lineage={})
    records.put(record)
    return ref, record.key


def damage(root: Path) -> list[Any]:
    """What ``verify --deep`` calls damaged."""
    return [finding for finding in verify(Store(root), root / "state", True, lambda *_: None) if finding.damaged]


def die_at(step: int) -> None:
    """Kill this process just before its file operation number ``step``, fsyncs and writes among them."""
    count = 0

    def next_step() -> None:
        nonlocal count
        if count == step:
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1

    def before(function: Any) -> Any:
        def called(*arguments: Any, **named: Any) -> Any:
            next_step()
            return function(*arguments, **named)

        return called

    os.fsync = before(os.fsync)
    HashedFile.write = before(HashedFile.write)  # type: ignore[method-assign]
    sys.addaudithook(lambda event, _: next_step() if event in STEPS else None)


@pytest.mark.parametrize("before", ["nothing", "an equal blob", "a cut blob", "a blob without manifest"])
def test_killed_at_every_step_of_a_commit(folder: Path, before: str) -> None:
    content, step, killed = b"new content" * 1000, 0, True
    while killed:
        root = folder / str(step)
        old, old_key = finish(root, "old", b"old content" * 100)
        if before != "nothing":
            ref, _ = finish(root, "new", content)
            blob = Store(root).folder(ref.digest)
            if before == "a cut blob":
                os.truncate(blob / "one.bin", 7)
            elif before == "a blob without manifest":
                (blob / MANIFEST_NAME).unlink()

        def work(root: Path = root, step: int = step) -> None:
            die_at(step)
            finish(root, "new", content)

        _, status = os.waitpid(forked(work), 0)
        killed = os.WIFSIGNALED(status)
        store, records = Store(root), Records(root)
        store.sweep()
        damaged = [finding for finding in damage(root) if before != "a cut blob" or "one.bin" not in finding.why]
        assert damaged == [], f"step {step}"
        assert store.has(old.digest) and records.get("validation", old_key) is not None
        if before == "an equal blob":
            assert store.has(ref.digest), "what was whole stays whole"
        again, key = finish(root, "new", content)
        assert store.has(again.digest) and records.get("validation", key) is not None and damage(root) == []
        step += 1
    assert step > (12 if before == "an equal blob" else 25), "the kill went through all steps"


def test_killed_at_random_times(folder: Path) -> None:
    chance, finished = random.Random(7), 0
    for trial in range(RANDOM_KILLS):
        root = folder / str(trial // 5)
        reading, writing = os.pipe()

        def work(root: Path = root, trial: int = trial, writing: int = writing) -> None:
            for n in range(1000):
                ref, key = finish(root, f"{trial} {n}", random.Random(f"{trial} {n}").randbytes(20_000))
                os.write(writing, f"{ref.digest} {key}\n".encode())

        pid = forked(work)
        os.close(writing)
        first = os.read(reading, 1) if trial % 2 else b""  # every other kill comes after something has finished
        time.sleep(chance.uniform(0, 0.02))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        with open(reading, "rb") as told:
            done = [line.split() for line in (first + told.read()).decode().splitlines()]
        store, records = Store(root), Records(root)
        store.sweep()
        assert damage(root) == [], f"trial {trial}"
        for digest, key in done:
            record = records.get("validation", key)
            assert record is not None and record.outputs["quarantine"].digest == digest and store.has(digest)
        assert list((root / "tmp").glob("*-*")) == [], "every workspace of the dead is swept"
        finished += len(done)
    assert finished >= RANDOM_KILLS // 2


def test_processes_that_commit_the_same_blobs(folder: Path) -> None:
    contents = [bytes([n]) * 5000 for n in range(12)]
    reading, writing = os.pipe()

    def work(seed: int) -> None:
        os.close(writing)
        os.read(reading, 1)  # until all are there
        for content in contents:
            for _ in range(2):
                finish(folder, f"{seed} {content[0]}", content)

    children = [forked(lambda seed=seed: _reporting(folder / f"failed{seed}", lambda: work(seed))) for seed in range(4)]  # type: ignore[misc]
    os.close(writing)
    for child in children:
        os.waitpid(child, 0)
    os.close(reading)
    assert [path.read_text() for path in folder.glob("failed*")] == []
    store = Store(folder)
    assert damage(folder) == [] and len(list(store.folders())) == len(contents)
    assert all(store.has(blob.name) for blob in store.folders())


def _reporting(path: Path, work: Callable[[], None]) -> None:
    try:
        work()
    except BaseException as error:
        with builtins.open(path, "w") as file:
            file.write(repr(error))
