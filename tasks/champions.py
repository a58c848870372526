"""Under which verifier the alias ``champion`` is kept."""

from artifacts.stage import Input
from tasks.handles import Verifier

CHAMPION = "champion"


def scope(verifier: Verifier) -> str | None:
    """What names this verifier in the state of a host: the digest of all that its drafts depend on, the tokenizer included.

    None in a plan that would have to make the verifier first: nobody has a champion of it.
    """
    whole = verifier.input("embed", "layer", "norm", "lm_head", "numbers", "tokenizer")
    return whole.digest if isinstance(whole, Input) else None
