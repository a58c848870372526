"""Every artifact of a finished project cut by a byte and flipped by a bit: found, and its producer alone runs again."""

import os
import shutil
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest

from artifacts.kinds import KINDS
from artifacts.lineage import Lineage
from artifacts.manifest import MANIFEST_NAME
from artifacts.records import Records
from artifacts.store import Store
from artifacts.verify import Finding, repair, verify
from errors import UserError
from flows.planning import open_host, plan
from running.settings_file import load_settings
from running.walk import Step
from tests.projects import Project

TRAINER = ("kimi_adapters/trainer.py", "Progress = Callable", "EDITED = 1\nProgress = Callable")
CHECK = ("tasks/shard_check.py", "\n\ndef _digests", "\n\nEDITED = 1\n\n\ndef _digests")
MERGE = ("tasks/validation_merge.py", "\n\ndef merge", "\n\nEDITED = 1\n\n\ndef merge")
EXPORT = ("tasks/export.py", "\n\ndef compute", "\n\nEDITED = 1\n\n\ndef compute")
REPLAY = ("kimi_adapters/replay.py", "\n\ndef walk_shards", "\n\nEDITED = 1\n\n\ndef walk_shards")
# What makes something read a blob of the kind: an edit of the stage that does.
READ_AFTER = {
    **dict.fromkeys(("token_shard", "loss_masks", "hidden_states", "quarantine", "vocabulary"), TRAINER),
    "state_stats": CHECK,
    "shard_check": MERGE,
}
FINAL, READ_BY_NOBODY = {"acceptance", "export"}, {"rejects", "curves", "validation_report"}
ONLY_ONCE = {"draft": EXPORT, "draft_start": REPLAY}
# By stages that this project does not have: synthesis, adoption, retraining, an engine.
NOT_MADE_HERE = {"verifier", "conversations", "comparison", "decision", "engine_acceptance", "layer_reference"}


def changed(data: bytes, how: str) -> bytes:
    """A byte less, or the middle byte with one bit turned."""
    middle = len(data) // 2
    return data[:-1] if how == "cut" else data[:middle] + bytes([data[middle] ^ 8]) + data[middle + 1 :]


def rewrite(path: Path, data: bytes) -> None:
    """Put other bytes in a file's place: it is a hard link into another project's store."""
    path.unlink()
    path.write_bytes(data)


def found(project: Project, deep: bool) -> list[Finding]:
    return list(verify(Store(project.store), project.folder / "state", deep, lambda *_: None))


def by_kind(project: Project) -> dict[str, list[Path]]:
    """The blobs of the project's store."""
    kinds: dict[str, list[Path]] = {}
    store = Store(project.store)
    for folder in store.folders():
        kinds.setdefault(store.manifest(folder.name).kind, []).append(folder)
    return kinds


def planned(project: Project) -> list[Step]:
    """What would run, by the project's code."""
    with chdir(project.folder):
        settings = load_settings(project.settings, [])
        return plan(settings, open_host(settings), project.folder).steps


def running(steps: list[Step]) -> list[tuple[str, str]]:
    return sorted((step.stage, step.node) for step in steps if step.status == "run")


def files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size)


@pytest.mark.parametrize("how", ["cut", "flip"])
def test_every_file_of_every_blob(project: Project, how: str) -> None:
    """One file of each blob in turn, until each was the damaged one: all are found and nothing else is."""
    blobs = [folder for folders in by_kind(project).values() for folder in folders]
    assert found(project, True) == []
    most = max(len(list(files(folder))) for folder in blobs)
    for turn in range(most):
        hurt = [(list(files(folder))[turn % len(list(files(folder)))], folder) for folder in blobs]
        before = [path.read_bytes() for path, _ in hurt]
        for (path, _), data in zip(hurt, before, strict=True):
            rewrite(path, changed(data, how))
        assert {one.digest for one in found(project, how == "flip") if one.damaged} == {folder.name for _, folder in hurt}
        if how == "cut":
            assert not any(Store(project.store).has(folder.name) for _, folder in hurt), "a reader finds it without verify"
        for (path, _), data in zip(hurt, before, strict=True):
            rewrite(path, data)
    assert found(project, True) == []


def test_only_the_producer_runs_again(project: Project) -> None:
    """A blob of each kind flipped and put aside: a plan adds its producer where something reads it, and nothing else."""
    kinds = by_kind(project)
    known = {*READ_AFTER, *FINAL, *READ_BY_NOBODY, *ONLY_ONCE}
    assert set(kinds) == known and set(KINDS) - known == NOT_MADE_HERE
    makers = Lineage.of(Records(project.store)).makers
    for kind, (folder, *_) in kinds.items():
        edit = READ_AFTER.get(kind) or ONLY_ONCE.get(kind)
        source = (project.folder / edit[0]).read_text() if edit else ""
        if edit:
            project.edit(*edit)
        sound = running(planned(project))
        path = next(path for path in files(folder) if path.name != MANIFEST_NAME)
        data = path.read_bytes()
        rewrite(path, changed(data, "flip"))
        (finding,) = found(project, True)
        aside = repair(Store(project.store), finding)
        assert aside is not None and finding.digest == folder.name
        (maker,) = makers[folder.name]
        if kind in ONLY_ONCE:
            with pytest.raises(UserError, match="cannot make it again bit for bit"):
                planned(project)
        else:
            more = [(maker.stage, maker.node)] if kind in {*READ_AFTER, *FINAL} else []
            assert running(planned(project)) == sorted([*sound, *more]), kind
        if edit:
            (project.folder / edit[0]).write_text(source)
        os.rename(aside, folder)
        rewrite(path, data)
    assert found(project, True) == []


def test_all_that_one_shard_gave_is_lost_and_made_again(project: Project) -> None:
    """And with it the lists and the vocabulary, so that every producer that can run again does, and each once."""
    shard = next(step.node for step in planned(project) if step.stage == "hidden_states" and step.node.endswith(" of a"))
    lost = [
        project.blob_of("corpus", "ids.0", "a"),
        project.blob_of("corpus", "masks.0", "a"),
        project.blob_of("hidden_states", "states", shard),
        project.blob_of("hidden_states", "stats", shard),
        project.blob_of("validation", "check", shard),
        project.blob_of("validation", "quarantine"),
        project.blob_of("vocabulary", "vocabulary"),
    ]
    before = [[path.read_bytes() for path in files(folder)] for folder in lost]
    records = {path.name for path in (project.store / "records").glob("*/*.json")}
    for folder in lost:
        shutil.rmtree(folder)
    project.edit(*TRAINER)
    again = [("corpus", "a"), ("hidden_states", shard), ("training", ""), ("validation", "report"), ("validation", shard)]
    assert running(planned(project)) == sorted([*again, ("vocabulary", "")])
    project.run_until_training()
    assert [[path.read_bytes() for path in files(folder)] for folder in lost] == before
    assert {path.name for path in (project.store / "records").glob("*/*.json")} == records, "no other key came up"
    assert found(project, True) == []
