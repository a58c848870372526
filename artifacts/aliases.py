"""Aliases: names that people give to a draft of a verifier (``champion``), moved only by whoever knows where they stand.

``<state>/aliases/<verifier digest>/<name>.json`` lies in the state of the one writing host, not in the store.
"""

import re
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from artifacts.disk import checked, locked, unchecked, write_atomically
from errors import UserError

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}$")


class Move(BaseModel):
    """When an alias came to name a digest (ISO 8601, UTC), and why."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    digest: str
    time: str
    because: str


class Alias(BaseModel):
    """An alias and everything that it has named; the last move holds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    verifier: str
    name: str
    history: list[Move]

    @property
    def digest(self) -> str:
        """What the alias names now."""
        return self.history[-1].digest

    @property
    def before(self) -> str | None:
        """What it named before, with what was taken back since left out; None where there is nothing to go back to."""
        standing: list[str] = []
        for move in self.history:
            if move.digest in standing:
                del standing[standing.index(move.digest) + 1 :]
            else:
                standing.append(move.digest)
        return standing[-2] if len(standing) > 1 else None


class AliasMoved(Exception):
    """An alias does not stand where the caller believed: somebody moved it meanwhile."""


def read_alias(path: Path) -> Alias:
    """The alias in a file; ``ValueError`` when it is torn or was changed."""
    alias = Alias.model_validate_json(unchecked(path.read_bytes()))
    if not alias.history or (alias.verifier, alias.name) != (path.parent.name, path.stem):
        raise ValueError("it belongs to another alias")
    return alias


class Aliases:
    """The aliases of one host."""

    def __init__(self, state: Path) -> None:
        self.root = state.absolute() / "aliases"

    def paths(self) -> list[Path]:
        """The files of all aliases."""
        return sorted(self.root.glob("*/[!.]*.json"))

    def all(self) -> list[Alias]:
        """Every alias; ``UserError`` for a damaged one, because what it protects would be unknown."""
        return [self._read(path) for path in self.paths()]

    def alias(self, verifier: str, name: str) -> Alias | None:
        """An alias with its history; None where it names nothing yet."""
        path = self._path(verifier, name)
        return self._read(path) if path.exists() else None

    def get(self, verifier: str, name: str) -> str | None:
        """The digest that ``name`` stands for under a verifier; None where it names nothing yet."""
        alias = self.alias(verifier, name)
        return alias.digest if alias else None

    def move(self, verifier: str, name: str, digest: str, expected: str | None, because: str) -> Alias:
        """Let ``name`` stand for ``digest`` if it stands for ``expected`` now; else ``AliasMoved``."""
        path = self._path(verifier, name)
        with locked(self.root / ".lock"):
            alias = self._read(path) if path.exists() else Alias(verifier=verifier, name=name, history=[])
            current = alias.digest if alias.history else None
            if current != expected:
                raise AliasMoved(f"{name} stands for {current} and not for {expected}")
            step = Move(digest=digest, time=datetime.now(UTC).isoformat(timespec="seconds"), because=because)
            alias = alias.model_copy(update={"history": [*alias.history, step]})
            write_atomically(path, checked(alias.model_dump_json(indent=1).encode()))
        return alias

    def _path(self, verifier: str, name: str) -> Path:
        if not _NAME.match(name) or not re.fullmatch(r"[0-9a-f]{6,64}", verifier):
            raise UserError(f"{name!r} is no name for an alias: use lower-case letters, digits, - and _")
        return self.root / verifier / f"{name}.json"

    def _read(self, path: Path) -> Alias:
        try:
            return read_alias(path)
        except ValueError as error:
            raise UserError(f"the alias in {path} is damaged ({str(error).splitlines()[0]}): restore or remove it") from None
