"""Which conversations of which source are to be left out: ``<store>/forgotten.json``. Ids stand in it as BLAKE3 only."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from artifacts.disk import checked, unchecked, write_atomically
from artifacts.manifest import digest_bytes
from errors import UserError

FORGOTTEN = "forgotten.json"
_HEX = re.compile(r"[0-9a-f]{64}$")


def id_digest(name: str) -> str:
    """BLAKE3 of a conversation's id, 64 hexadecimal digits."""
    return digest_bytes(name.encode("utf-8", "surrogatepass"))


def read_forgotten(path: Path) -> dict[str, list[str]]:
    """The map in a file; ``ValueError`` when it is torn or was changed."""
    return parse_forgotten(path.read_bytes())


def parse_forgotten(data: bytes) -> dict[str, list[str]]:
    """The map in a file's bytes; ``ValueError`` as above."""
    value = json.loads(unchecked(data))
    if not isinstance(value, dict) or set(value) != {"sources"} or not isinstance(value["sources"], dict):
        raise ValueError("it holds no map of sources")
    if not all(_HEX.match(digest) for source, digests in value["sources"].items() for digest in (source, *digests)):
        raise ValueError("it holds something that is no digest")
    return {source: sorted(digests) for source, digests in value["sources"].items()}


class Forgotten:
    """Source digest -> digests of the ids that are left out of it.

    A source that was not known when something was last forgotten leaves out everything that was ever forgotten: a file that
    has grown since has a new digest and may hold the conversation still. One that was known keeps its own list, so that
    forgetting changes the keys of no other source.
    """

    def __init__(self, root: Path) -> None:
        self.path = root.absolute() / FORGOTTEN
        try:
            self.sources = read_forgotten(self.path)
        except FileNotFoundError:
            self.sources = {}
        except (ValueError, TypeError):
            raise UserError(
                f"{self.path} is damaged, and without it forgotten conversations would come back: restore it from a copy"
            ) from None

    def of(self, source_digest: str) -> list[str]:
        """The digests of the ids to leave out of a source, sorted."""
        own = self.sources.get(source_digest)
        return sorted(self.everything) if own is None else list(own)

    @property
    def everything(self) -> set[str]:
        """Every digest of an id that was ever forgotten."""
        return {digest for digests in self.sources.values() for digest in digests}

    def merge(self, sources: Mapping[str, list[str]]) -> None:
        """Take in what was forgotten elsewhere."""
        merged = {
            source: sorted({*self.sources.get(source, ()), *sources.get(source, ())}) for source in {*self.sources, *sources}
        }
        if merged != self.sources:
            self.put(merged)

    def put(self, sources: Mapping[str, list[str]]) -> None:
        """Replace the map, durably."""
        self.sources = {source: sorted(set(digests)) for source, digests in sorted(sources.items())}
        write_atomically(self.path, checked(json.dumps({"sources": self.sources}, indent=1).encode()))
