"""Forgetting a conversation: what holds its samples is found by their ids, and removed so that only that is made again.

Found are the sources (by the masks that name the id and the records that made them), the blobs that hold a sample or name its
id, copies of conversations in the store, and the drafts that were trained on it. A copy is written again without its rows
(``artifacts/rewriting.py``).
"""

import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from artifacts.collect import Blob
from artifacts.forgotten import Forgotten, id_digest
from artifacts.lineage import Lineage
from artifacts.manifest import Ref
from artifacts.records import Record, Records
from artifacts.rewriting import CONVERSATIONS, pointing_at, rewrite
from artifacts.store import BlobMissing, Store

SAMPLES = "samples.jsonl"
MAX_LENGTH = "setting corpus.max_length"  # as the key of a corpus names it
_HOLD = ("hidden_states", "state_stats", "shard_check")  # made of one shard's samples
_NAME = ("rejects", "shard_check", "validation_report", "quarantine")  # may name a sample's id
_ORDER = ("hidden_states", "state_stats", "shard_check", "validation_report", "quarantine", "rejects", "token_shard")


@dataclass
class Forgetting:
    """What forgetting some ids means.

    ``sources`` maps a source's digest to the digests of ids found in it, ``files`` are those of them that lie outside the
    store, ``samples`` counts samples by id, ``copies`` holds for each copy of conversations the tokens of each row that goes,
    ``twins`` counts samples of other ids with the same text, ``absent`` are blobs made of a shard that goes which are not in
    the store: a mirror may have them.
    """

    ids: list[str]
    sources: dict[str, set[str]] = field(default_factory=dict)
    files: set[str] = field(default_factory=set)
    samples: dict[str, int] = field(default_factory=dict)
    blobs: dict[str, Blob] = field(default_factory=dict)
    copies: dict[str, tuple[Blob, dict[str, int]]] = field(default_factory=dict)
    drafts: list[tuple[Record, Ref]] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    twins: int = 0
    absent: set[str] = field(default_factory=set)

    @property
    def nothing(self) -> bool:
        """Whether nothing in the store holds or names the ids."""
        return not self.blobs and not self.copies and not self.sources


class Search:
    """One pass over the store for some ids."""

    def __init__(self, store: Store, lineage: Lineage, ids: Iterable[str]) -> None:
        self.store, self.lineage = store, lineage
        self.found = Forgetting(sorted(set(ids)))
        self._marks = [mark for one in self.found.ids for mark in marks(one)]
        self._bare = [mark.strip(b'"') for mark in self._marks]  # an id may be a number in a conversations file
        self._digests = {one: id_digest(one) for one in self.found.ids}
        self._hashes: set[str] = set()

    def run(self) -> Forgetting:
        """Look through every blob that may hold or name a sample."""
        masks = []
        for folder in self.store.folders():
            try:
                manifest = self.store.manifest(folder.name)
            except BlobMissing:
                continue
            blob = Blob(folder.name, manifest.kind, manifest.size)
            if blob.kind == "loss_masks":
                masks.append(blob)
                self._masks(blob, folder / SAMPLES)
            elif blob.kind == "conversations":
                self._copy(blob, self._rows(folder / CONVERSATIONS))
            elif blob.kind in _NAME and any(self._names(folder / entry.path) for entry in manifest.files):
                self.found.blobs[blob.digest] = blob
        self._counted()
        self._trained_on()
        self.found.twins = sum(self._twins(self.store.folder(blob.digest) / SAMPLES) for blob in masks)
        done = Forgotten(self.store.root).everything
        there = {*self.found.samples, *(one for _, rows in self.found.copies.values() for one in rows)}
        self.found.unknown = [one for one in self.found.ids if one not in there and self._digests[one] not in done]
        return self.found

    def _names(self, path: Path) -> bool:
        data = path.read_bytes()
        return any(mark in data for mark in self._marks)

    def _rows(self, path: Path) -> list[dict[str, Any]]:
        return [row for row in _json_lines(path, self._bare) if str(row.get("id")) in self._digests]

    def _masks(self, blob: Blob, path: Path) -> None:
        rows = self._rows(path)
        if not rows:
            return
        for row in rows:
            self.found.samples[row["id"]] = self.found.samples.get(row["id"], 0) + 1
            self._hashes |= {row["hash"]} if row.get("hash") else set()
        self.found.blobs[blob.digest] = blob
        for record in self.lineage.makers.get(blob.digest, []):
            self._source(record, {self._digests[row["id"]] for row in rows})
            output = next(name for name, ref in record.outputs.items() if ref.digest == blob.digest)
            beside = (record.outputs.get(output.replace("masks", name)) for name in ("ids", "states", "stats"))
            self._holders([blob.digest, *(ref.digest for ref in beside if ref)])

    def _source(self, record: Record, digests: set[str]) -> None:
        inputs = record.lineage["inputs"]
        files = [source for name, source in inputs.items() if name == "source" or name.startswith("sample.")]
        for source in files:
            self.found.sources.setdefault(source["digest"], set()).update(digests)
            if source["path"]:
                self.found.files.add(source["path"])

    def _holders(self, digests: list[str]) -> None:
        """Take in the shard itself and everything that was made of its samples alone."""
        waiting, seen = list(digests), set()
        while waiting:
            digest = waiting.pop()
            if digest in seen:
                continue
            seen.add(digest)
            if digest not in self.found.blobs:
                try:
                    manifest = self.store.manifest(digest)
                    self.found.blobs[digest] = Blob(digest, manifest.kind, manifest.size)
                except BlobMissing:
                    self.found.absent.add(digest)
            for record in self.lineage.readers.get(digest, []):
                waiting += [ref.digest for ref in record.outputs.values() if ref.kind in _HOLD]

    def _copy(self, blob: Blob, rows: list[dict[str, Any]]) -> None:
        if rows:
            self.found.copies[blob.digest] = blob, {str(row["id"]): _tokens(row) for row in rows}
            self.found.sources.setdefault(blob.digest, set()).update(self._digests[str(row["id"])] for row in rows)

    def _counted(self) -> None:
        """The tokens of a row as they counted where shards were cut: no more than a sample may have, none of a row that
        became no sample."""
        for digest, (_, rows) in self.found.copies.items():
            readers = sorted(self.lineage.readers.get(digest, []), key=lambda record: str(record.lineage.get("finished", "")))
            longest = [record.parts[MAX_LENGTH] for record in readers if MAX_LENGTH in record.parts][-1:]
            rows |= {one: min(count, *map(int, longest), count) for one, count in rows.items()}
            outputs = [ref for record in readers for ref in record.outputs.values()]
            if any(ref.kind == "loss_masks" and self.store.has(ref.digest) for ref in outputs):
                rows |= {one: 0 for one in rows if one not in self.found.samples}

    def _trained_on(self) -> None:
        held = [blob.digest for blob in self.found.blobs.values() if blob.kind in ("token_shard", "loss_masks")]
        for record in self.lineage.descendants([*held, *self.found.copies]):
            self.found.drafts += [(record, ref) for ref in record.outputs.values() if ref.kind == "draft"]

    def _twins(self, path: Path) -> int:
        """Samples of other ids that have the text of a forgotten one."""
        marks = [json.dumps(one).encode() for one in self._hashes]
        rows = _json_lines(path, marks) if marks else []
        return sum(row.get("hash") in self._hashes and row["id"] not in self._digests for row in rows)


def to_look_into(store: Store, lineage: Lineage) -> set[str]:
    """The blobs that a search reads and the store lacks: those that were collected may lie in a mirror still."""
    kinds = ("loss_masks", "conversations", *_NAME)
    return {digest for digest, ref in lineage.refs.items() if ref.kind in kinds and not store.has(digest)}


def marks(name: str) -> set[bytes]:
    """How an id may stand in a JSON file."""
    return {json.dumps(name, ensure_ascii=ascii).encode("utf-8", "surrogatepass") for ascii in (True, False)}


def _json_lines(path: Path, marks: list[bytes]) -> Iterator[dict[str, Any]]:
    """The lines of a file that hold one of the marks."""
    with open(path, "rb") as file:
        for line in file:
            if any(mark in line for mark in marks):
                yield json.loads(line)


def forget(store: Store, records: Records, lineage: Lineage, found: Forgetting) -> list[Record]:
    """Write the list, rewrite the copies, remove the blobs; masks go last, so that what a killed run left is found again.

    The caller holds ``Store.alone``. Returns the records that name a rewritten copy now.
    """
    forgotten = Forgotten(store.root)
    known = {r.lineage["inputs"]["source"]["digest"] for rs in lineage.makers.values() for r in rs if r.stage == "corpus"}
    sources = {source: forgotten.of(source) for source in {*known, *forgotten.sources, *found.sources}}
    rewritten = {digest: rewrite(store, copy, rows, lineage) for digest, (copy, rows) in found.copies.items()}
    for old, ref in rewritten.items():
        sources.setdefault(ref.digest, sources[old])
    forgotten.put({source: [*digests, *found.sources.get(source, ())] for source, digests in sources.items()})
    pointed = []
    for old, ref in rewritten.items():
        for record in lineage.makers.get(old, []):
            pointed.append(pointing_at(record, old, ref, len(found.copies[old][1])))
            records.put(pointed[-1])
    shutil.rmtree(store.root / "damaged", ignore_errors=True)  # what was put aside may hold them, too,
    store.sweep()  # and so may what a killed process had begun
    for digest in found.copies:  # first, while the masks still say which of its rows were counted
        store.delete(digest)
    for kind in (*_ORDER, "loss_masks"):
        for blob in found.blobs.values():
            if blob.kind == kind:
                store.delete(blob.digest)
    return pointed


def _tokens(row: dict[str, Any]) -> int:
    return len(row.get("prompt_ids", [])) + len(row.get("answer_ids", []))
