"""Under which verifier the alias ``champion`` is kept."""

from artifacts.manifest import canonical_json, digest_bytes
from tasks.handles import Verifier

CHAMPION = "champion"


def scope(verifier: Verifier) -> str | None:
    """What names this verifier in the state of a host: a digest of everything that any stage reads of it.

    None in a plan that would have to make the verifier first: nobody has a champion of it.
    """
    return digest_bytes(canonical_json(verifier.facts["roles"])) if verifier.facts else None
