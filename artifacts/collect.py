"""What may be collected: every blob that no alias (or export of what it names) and no recent run names, except what a living
descendant still needs.

An output that cannot be made again bit for bit (synthesis, training) is needed while anything that was made of it lives.
Everything else can be made again from its inputs, so that only the roots themselves keep it. Records stay.
"""

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from artifacts.lineage import Lineage
from artifacts.records import Record
from artifacts.runs import Run
from artifacts.store import BlobMissing, Store
from artifacts.usage import folder_bytes


@dataclass(frozen=True)
class Blob:
    """A blob as the store has it; ``size`` in bytes."""

    digest: str
    kind: str
    size: int


@dataclass
class Collection:
    """What stays, what goes, and the folders that are no blobs: without a manifest, or put aside as damaged."""

    kept: list[Blob] = field(default_factory=list)
    gone: list[Blob] = field(default_factory=list)
    stray: list[Path] = field(default_factory=list)
    damaged: list[Path] = field(default_factory=list)

    @property
    def freed(self) -> int:
        """Bytes that go."""
        return sum(blob.size for blob in self.gone) + sum(folder_bytes(path) for path in (*self.stray, *self.damaged))

    def by_kind(self) -> list[tuple[str, int, int, int, int]]:
        """Kind, blobs and bytes that stay, blobs and bytes that go; the largest kinds first."""
        rows = []
        for kind in {blob.kind for blob in (*self.kept, *self.gone)}:
            kept, gone = ([b.size for b in blobs if b.kind == kind] for blobs in (self.kept, self.gone))
            rows.append((kind, len(kept), sum(kept), len(gone), sum(gone)))
        return sorted(rows, key=lambda row: (-row[2] - row[4], row[0]))


def live(lineage: Lineage, named: Iterable[str], runs: Iterable[Run]) -> set[str]:
    """The digests that must stay: what aliases name, what the runs used or made, and parents in need."""
    by_key = {record.key: record for records in lineage.makers.values() for record in records}
    roots = set(named)
    for run in runs:
        keys = {node.key for node in run.nodes}
        for record in by_key.values():
            if record.key in keys or (run.state == "running" and record.lineage.get("finished", "") >= run.began):
                roots |= _outputs(record)
    for record in lineage.ancestors(roots):
        if not record.reproducible:
            roots |= _outputs(record)
    return roots


def served(lineage: Lineage, named: Iterable[str]) -> list[str]:
    """What aliases name, and the exports of it: an engine may load them from here."""
    found = list(named)
    readers = [record for digest in found for record in lineage.readers.get(digest, [])]
    return found + [ref.digest for record in readers for ref in record.outputs.values() if ref.kind == "export"]


def _outputs(record: Record) -> set[str]:
    return {ref.digest for ref in record.outputs.values()}


def collection(store: Store, keep: set[str]) -> Collection:
    """Sort the store's blobs into those that stay and those that go; nothing is removed."""
    found = Collection(damaged=sorted((store.root / "damaged").glob("*")))
    for folder in store.folders():
        try:
            manifest = store.manifest(folder.name)
        except BlobMissing:
            found.stray.append(folder)
            continue
        blob = Blob(folder.name, manifest.kind, manifest.size)
        (found.kept if blob.digest in keep else found.gone).append(blob)
    return found


def collect(store: Store, chosen: Collection, progress: Callable[[int, int], None]) -> None:
    """Remove what goes, and workspaces of dead processes. The caller holds ``Store.alone``."""
    store.sweep()
    for path in (*chosen.stray, *chosen.damaged):
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    done, total = 0, sum(blob.size for blob in chosen.gone)
    for blob in chosen.gone:
        store.delete(blob.digest)
        done += blob.size
        progress(done, total)
