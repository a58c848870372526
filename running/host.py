"""What a run or a plan needs of this host: its store, its records, its state; opened from the settings in one place."""

import os
from dataclasses import dataclass
from pathlib import Path

from artifacts.mirror import Mirror
from artifacts.records import Records
from artifacts.store import Store
from errors import UserError
from running.identity import FileMemo
from running.mirroring import Mirroring
from running.snapshot import project_root
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
        store, folder = Store(Path(path)), Path(state).absolute()
        try:
            store.root.mkdir(parents=True, exist_ok=True)
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"the store {store.root} cannot be made ({error.strerror}): correct store.path and store.state"
            ) from None
        if not os.access(store.root, os.W_OK):
            raise UserError(f"the store {store.root} is not writable: correct store.path or its permissions")
        records = Records(store.root)
        mirroring = Mirroring(copy, store, records, max_bytes) if copy else None
        return cls(store, records, folder, FileMemo(folder), max_bytes, mirroring)

    def walk(self, code: Path | None = None) -> Walk:
        """A walk over this store with the code of ``code``, else of the checkout."""
        return Walk(self.store, self.records, code or project_root(), self.max_bytes, self.mirroring)
