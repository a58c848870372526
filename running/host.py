"""What a run or a plan needs of this host: its store, its records, its state; opened from the settings in one place."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from artifacts.aliases import Aliases
from artifacts.forgotten import Forgotten
from artifacts.mirror import Mirror
from artifacts.records import Records
from artifacts.runs import RunNode, Runs
from artifacts.store import Store
from errors import UserError
from running.identity import FileMemo
from running.mirroring import Mirroring
from running.snapshot import project_root, remove_old_runs
from running.walk import Walk


@dataclass(frozen=True)
class Host:
    """A store with its records, the state folder of this host, and what it remembers of files outside."""

    store: Store
    records: Records
    state: Path
    memo: FileMemo
    max_bytes: int | None
    mirroring: Mirroring | None = None

    @classmethod
    def open(cls, path: str, state: str, max_bytes: int | None, mirror: str | None = None) -> "Host":
        """Open, and make where needed, the folders of a store; its mirror is not asked yet."""
        copy = Mirror.open(mirror) if mirror else None
        store, folder = Store(Path(path), max_bytes), Path(state).absolute()
        _make(store.root, "the store", "store.path")
        _make(folder, "the state folder", "store.state")
        records = Records(store.root)
        mirroring = Mirroring(copy, store, records, max_bytes) if copy else None
        return cls(store, records, folder, FileMemo(folder), max_bytes, mirroring)

    @property
    def runs(self) -> Runs:
        """The manifests of the store's runs."""
        return Runs(self.store.root)

    @property
    def aliases(self) -> Aliases:
        """The aliases of this host."""
        return Aliases(self.state)

    @property
    def forgotten(self) -> Forgotten:
        """What the store's sources leave out, what was forgotten on other machines of its mirror included."""
        forgotten = Forgotten(self.store.root)
        if self.mirroring:
            self.mirroring.take_forgotten(forgotten)
        return forgotten

    def remove_old_runs(self, kept: int) -> None:
        """Remove the folders of all runs but the newest: their code snapshots and their children's logs."""
        remove_old_runs(self.state / "runs", kept)

    def walk(self, code: Path | None = None) -> Walk:
        """A walk over this store with the code of ``code``, else of the checkout."""
        return Walk(self.store, self.records, code or project_root(), self.max_bytes, self.mirroring)

    @contextmanager
    def noted_run(self, run_id: str, name: str, walk: Walk, smoke: bool = False) -> Iterator[None]:
        """Hold the store for a run and keep its manifest, to the end of the block. ``smoke``: its sources are limited."""

        def nodes() -> list[RunNode]:
            return [RunNode(stage=s.stage, node=s.node, key=s.key, status=s.status, digest=s.digest) for s in list(walk.steps)]

        with self.store.in_use(), self.runs.noting(run_id, name, nodes, smoke):
            yield


def _make(folder: Path, what: str, setting: str) -> None:
    """Make a folder where needed, and see that files can be made in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{what} {folder} cannot be made ({error.strerror}): correct {setting}") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"{what} {folder} is not writable: correct {setting} or its permissions")
