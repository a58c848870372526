"""What a run or a plan needs of this host: its store, its records, its state; opened from the settings in one place."""

import os
from dataclasses import dataclass
from pathlib import Path

from artifacts.records import Records
from artifacts.store import Store
from errors import UserError
from running.identity import FileMemo
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

    @classmethod
    def open(cls, path: str, state: str, max_bytes: int | None) -> "Host":
        """Open, and make where needed, the folders of a store."""
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
        return cls(store, Records(store.root), folder, FileMemo(folder), max_bytes)

    def walk(self, code: Path | None = None) -> Walk:
        """A walk over this store with the code of ``code``, else of the checkout."""
        return Walk(self.store, self.records, code or project_root(), self.max_bytes)
