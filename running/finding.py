"""What a person means by a digest's first digits, an alias or a path."""

import re
from collections.abc import Iterable
from pathlib import Path

from artifacts.kinds import KINDS
from artifacts.lineage import Lineage
from artifacts.manifest import MANIFEST_NAME, FileEntry, Manifest, digest_file
from artifacts.store import BlobMissing
from errors import UserError
from running.host import Host

_DIGITS = re.compile(r"[0-9a-f]{6,64}$")


def resolve(host: Host, lineage: Lineage, ref: str) -> str:
    """The digest that ``ref`` stands for; ``UserError`` for none and for several."""
    aliases = {alias.digest for alias in host.aliases.all() if alias.name == ref}
    if aliases:
        return _the_only(ref, aliases, "alias of several verifiers")
    known = lineage.refs.keys() | {folder.name for folder in host.store.folders()}
    if _DIGITS.match(ref):
        matching = {digest for digest in known if digest.startswith(ref)}
        if matching:
            return _the_only(ref, matching, "beginning of several digests")
    path = Path(ref)
    if not path.exists():
        raise UserError(
            f"{ref!r} is no alias, no path and not the first 6 or more digits of a digest in the store {host.store.root}"
        )
    return _by_path(host, known, path.resolve())


def _the_only(ref: str, found: Iterable[str], what: str) -> str:
    digests = sorted(found)
    if len(digests) > 1:
        raise UserError(f"{ref!r} is the {what}: {', '.join(digest[:16] for digest in digests[:5])}; give more digits")
    return digests[0]


def _by_path(host: Host, known: Iterable[str], path: Path) -> str:
    blobs = (host.store.root / "blobs").resolve()
    if path.is_relative_to(blobs) and len(path.relative_to(blobs).parts) > 1:
        return path.relative_to(blobs).parts[1]
    found = _by_folder(known, path) if path.is_dir() else _by_file(host, path) or _by_folder(known, path.parent)
    if not found:
        raise UserError(f"{path} is no artifact of the store {host.store.root}, nor an unchanged copy of one")
    return _the_only(str(path), found, "copy of files of several artifacts")


def _by_folder(known: Iterable[str], folder: Path) -> set[str]:
    """The artifact whose files, all of them, lie in a folder: by its manifest, else by their digests."""
    try:
        return {Manifest.model_validate_json((folder / MANIFEST_NAME).read_bytes()).digest()} & set(known)
    except (FileNotFoundError, ValueError):
        pass
    paths = sorted(p for p in folder.rglob("*") if p.is_file())
    files = tuple(
        FileEntry(path=name, size=path.stat().st_size, blake3=digest_file(path))
        for name, path in sorted((str(path.relative_to(folder)), path) for path in paths)
    )
    return {Manifest(kind=kind, files=files).digest() for kind in KINDS} & set(known)


def _by_file(host: Host, path: Path) -> set[str]:
    """The blobs that hold a file of these bytes."""
    size, digest, found = path.stat().st_size, "", set()
    for folder in host.store.folders():
        try:
            entries = host.store.manifest(folder.name).files
        except BlobMissing:
            continue
        if any(entry.size == size for entry in entries):
            digest = digest or digest_file(path)
            found |= {folder.name} if any(entry.blake3 == digest for entry in entries) else set()
    return found
