"""The disk fills in the middle of a real run: one sentence, everything old is whole, and the next run goes on."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from artifacts.records import read_record
from artifacts.store import Store
from artifacts.verify import verify
from tests.projects import Project, no_orphans, wait_for

STAGES = ("corpus", "hidden_states", "validation", "vocabulary", "training", "acceptance", "export")


@pytest.fixture
def on_small_disk(project: Project) -> Iterator[Path]:
    """Moves the project's store onto a tmpfs, which needs root to mount."""
    store, disk = project.store, project.folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600m", "tmpfs", str(disk)], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    try:
        shutil.copytree(store, disk / "store")
        shutil.rmtree(store)
        store.symlink_to(disk / "store")
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def unmake(project: Project, stages: tuple[str, ...]) -> None:
    """Remove what some stages have made."""
    store = Store(project.store)
    for path in (path for stage in stages for path in project.records(stage)):
        for ref in read_record(path).outputs.values():
            store.delete(ref.digest)
        path.unlink()


def fill(disk: Path, left: int) -> Path:
    """Take a disk but for ``left`` bytes."""
    with open(disk / "filler", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(disk).free - left)
    return disk / "filler"


@pytest.mark.parametrize(("stage", "left"), [("hidden_states", 7_000_000)])
def test_the_run_says_it_and_the_next_one_goes_on(project: Project, on_small_disk: Path, stage: str, left: int) -> None:
    unmake(project, STAGES[STAGES.index(stage) :])
    old = {path: path.read_bytes() for kind in ("blobs", "records") for path in (project.store / kind).rglob("*.*")}
    run = project.start()
    wait_for(lambda: any(stage.encode() in line for line in project._lines()), process=run)
    filler = fill(on_small_disk, left)
    _, errors = run.communicate(timeout=300)
    lines = [line for line in errors.splitlines() if line.startswith("eyas: ")]
    assert run.returncode == 2 and len(lines) == 1 and "Traceback" not in errors, errors[-3000:]
    assert lines[0].startswith("eyas: the disk of ") and "is full: free space there" in lines[0]
    no_orphans(project)
    assert {path: path.read_bytes() for path in old} == old
    assert list(verify(Store(project.store), project.folder / "state", True, lambda *_: None)) == []
    finished = {path for one in STAGES for path in project.records(one)}
    filler.unlink()
    project.run_until_training()
    assert finished < {path for one in STAGES for path in project.records(one)} and project.records("vocabulary")
