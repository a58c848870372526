"""A copy of the store at any fsspec URI: the same blobs, manifests and records under the same names, by plain puts.

A blob's files go first, its manifest after them, the record that names it last; what has no manifest there does not exist. A
manifest proves itself by its digest, a record by a last line that holds the BLAKE3 of what stands above it.
"""

import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from artifacts.disk import checked
from artifacts.forgotten import FORGOTTEN, parse_forgotten
from artifacts.key import key_of
from artifacts.manifest import MANIFEST_NAME, Manifest, digest_bytes
from artifacts.mirror_files import Carrier, Damaged
from artifacts.records import Record, Records
from artifacts.store import BlobMissing, Store
from artifacts.writer import ArtifactWriter
from errors import UserError

_AT_ONCE = 512  # small files of one bulk request; the backend has its own limit of connections
_FEW = 64  # manifests that are asked for one by one; beyond, all are listed


class Mirror:
    """The copy at one place. Whatever its backend raises comes through; ``name`` is safe to print."""

    def __init__(self, fs: Any, root: str) -> None:
        protocol = fs.protocol if isinstance(fs.protocol, str) else fs.protocol[0]
        self.fs, self.root, self.name = fs, root.rstrip("/"), f"{protocol}://{root.rstrip('/')}"
        self.carrier = Carrier(fs)
        self.suspect: set[str] = set()  # blobs found damaged there: the next push sends them again

    @classmethod
    def open(cls, uri: str) -> "Mirror":
        """The mirror at ``uri``; nothing is asked of it yet. ``UserError`` where fsspec does not know or lacks the protocol."""
        from fsspec.core import url_to_fs

        try:
            fs, root = url_to_fs(uri, use_listings_cache=False)
        except (ValueError, ImportError) as error:
            protocol = uri.partition("://")[0]
            raise UserError(
                f"store.mirror names the protocol {protocol!r}, which cannot be used ({error}): correct the address or install "
                "the package that serves it (for s3: eyas[s3])"
            ) from None
        return cls(fs, root)

    def blob(self, digest: str, file: str = MANIFEST_NAME) -> str:
        """The path of a blob's file."""
        return f"{self.root}/blobs/{digest[:2]}/{digest}/{file}"

    def stages(self) -> list[str]:
        """The stages that have records there."""
        try:
            found = self.fs.ls(f"{self.root}/records", detail=False)
        except FileNotFoundError:
            return []
        return sorted(path.rstrip("/").rpartition("/")[2] for path in found)

    def keys(self, stage: str) -> set[str]:
        """The keys of all records of a stage, by one listing."""
        try:
            found = self.fs.ls(f"{self.root}/records/{stage}", detail=False)
        except FileNotFoundError:
            return set()
        return {path.rpartition("/")[2].removesuffix(".json") for path in found if path.endswith(".json")}

    def records(self, stage: str, keys: Iterable[str], into: Records) -> Iterator[Record | Damaged]:
        """Fetch records and keep them in ``into``, not synced: a torn one counts as none and is fetched again."""
        for path, data in self._bulk({key: f"{self.root}/records/{stage}/{key}.json" for key in keys}.values()):
            try:
                record = _read_record(data)
            except ValueError:
                yield Damaged(f"{path} is damaged")
                continue
            target = into.path(record.stage, record.key)
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
            temporary.write_bytes(checked(data.rpartition(b"\n")[0]))
            os.replace(temporary, target)
            yield record

    def send_record(self, record: Record) -> None:
        """Put a record; its blobs are there."""
        body = record.model_dump_json(indent=1).encode()
        path = f"{self.root}/records/{record.stage}/{record.key}.json"
        self.carrier.send_bytes(body + b"\n" + digest_bytes(body).encode(), path)

    def manifests(self, digests: Iterable[str]) -> dict[str, Manifest]:
        """The manifests of those blobs that are there; one that does not prove itself counts as absent, and is suspect."""
        paths = {self.blob(digest): digest for digest in digests}
        found = {}
        for path, data in self._bulk(paths):
            digest = paths[path]
            try:
                manifest = Manifest.model_validate_json(data)
            except ValidationError:
                manifest = None
            if manifest and manifest.digest() == digest:
                found[digest] = manifest
            else:
                self.suspect.add(digest)
        return found

    def there(self, digests: set[str]) -> set[str]:
        """Which of these blobs have a manifest there."""
        if len(digests) <= _FEW:
            return set(self.manifests(digests))
        return {path.split("/")[-2] for path in self.sizes() if path.endswith("/" + MANIFEST_NAME)} & digests

    def sizes(self) -> dict[str, int]:
        """Bytes of every file of every blob, by path: one listing of all."""
        try:
            found = self.fs.find(f"{self.root}/blobs", detail=True)
        except FileNotFoundError:
            return {}
        return {path: info["size"] for path, info in found.items()}

    def send_blob(self, store: Store, digest: str, sizes: dict[str, int] | None = None) -> int:
        """Put a blob that is not there, its manifest last; gives the bytes sent, 0 where it was there.

        ``sizes`` (of all files there) finds cut files too; without it a manifest is taken for the blob.
        """
        if digest not in self.suspect and self._is_there(store, digest, sizes):
            return 0
        folder, manifest = store.open(digest), store.manifest(digest)
        for entry in manifest.files:
            self.carrier.send(folder / entry.path, self.blob(digest, entry.path), entry)
        self.carrier.send_bytes(manifest.model_dump_json().encode(), self.blob(digest))
        self.suspect.discard(digest)
        return max(1, manifest.size)

    def _is_there(self, store: Store, digest: str, sizes: dict[str, int] | None) -> bool:
        if sizes is None:
            return digest in self.manifests([digest])
        try:
            files = {self.blob(digest, entry.path): entry.size for entry in store.manifest(digest).files}
        except BlobMissing:
            return self.blob(digest) in sizes
        return self.blob(digest) in sizes and all(sizes.get(path) == size for path, size in files.items())

    def remove(self, digests: Iterable[str]) -> None:
        """Remove blobs, the manifest of each first: a folder without one does not exist."""
        for digest in digests:
            for path, recursive in ((self.blob(digest), False), (self.blob(digest, "").rstrip("/"), True)):
                with suppress(FileNotFoundError):
                    self.fs.rm(path, recursive=recursive)

    def forgotten(self) -> dict[str, list[str]]:
        """The map of what was forgotten, as a machine has sent it."""
        path = f"{self.root}/{FORGOTTEN}"
        try:
            data = self.fs.cat_file(path)
        except FileNotFoundError:
            return {}
        try:
            return parse_forgotten(data)
        except ValueError as error:
            raise Damaged(f"{path} is damaged ({error})") from None

    def send_forgotten(self, data: bytes) -> None:
        """Put the map of what was forgotten."""
        self.carrier.send_bytes(data, f"{self.root}/{FORGOTTEN}")

    def fetch_blob(self, store: Store, digest: str, manifest: Manifest) -> None:
        """Bring a blob into the store by the store's own atomic path; ``Damaged`` where its bytes are not those of its name."""
        try:
            with store.workspace() as workspace:
                writer = ArtifactWriter(manifest.kind, workspace)
                for entry in manifest.files:
                    self.carrier.fetch(self.blob(digest, entry.path), entry, writer.open(entry.path))
                store.commit(writer.seal())
        except (Damaged, FileNotFoundError) as error:
            self.suspect.add(digest)
            raise Damaged(str(error)) from None

    def _bulk(self, paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """The contents of small files; those that are not there are left out."""
        waiting = list(paths)
        for start in range(0, len(waiting), _AT_ONCE):
            for path, data in self.fs.cat(waiting[start : start + _AT_ONCE], on_error="return").items():
                if isinstance(data, bytes):
                    yield path, data
                elif not isinstance(data, FileNotFoundError):
                    raise data


def _read_record(data: bytes) -> Record:
    body, _, check = data.rpartition(b"\n")
    if digest_bytes(body).encode() != check:
        raise ValueError("the last line does not prove the record")
    record = Record.model_validate_json(body)
    if key_of(record.parts) != record.key:
        raise ValueError("the key is not that of the record's parts")
    return record
