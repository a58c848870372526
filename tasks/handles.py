"""What the flow hands from stage to stage: the verifier, sources and shards, without the code that makes them.

Stage modules import these and not one another: whom a stage imports is part of its key.
"""

from dataclasses import dataclass
from typing import Any

from artifacts.manifest import canonical_json, digest_bytes
from artifacts.stage import Input, Pending


@dataclass(frozen=True)
class Verifier:
    """What the flow knows of the verifier. ``facts`` is None in a plan that would have to make it first."""

    name: str
    facts: dict[str, Any] | None
    because: str
    source: Input | None
    chat_format: str | None

    def input(self, *roles: str) -> Input | Pending:
        """The verifier as an input of a stage that reads ``roles`` of it and no more."""
        if self.facts is None or self.source is None:
            return Pending(self.because)
        digest = digest_bytes(canonical_json({role: self.facts["roles"][role] for role in sorted(roles)}))
        return Input(digest, ref=self.source.ref, path=self.source.path)


@dataclass(frozen=True)
class Source:
    """A file of conversations, the user's or synthesis's; ``tokens`` is a low estimate for plans."""

    name: str
    input: Input | Pending
    tokens: int = 0


@dataclass(frozen=True)
class Shard:
    """A token shard with its masks, as later stages take them. Pending parts stand for all shards of a source."""

    name: str
    ids: Input | Pending
    masks: Input | Pending
    tokens: int
