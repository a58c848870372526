"""Whether the draft that a recipe asks for can be built over the verifier: asked while the flow plans.

No stage reaches this module; training's child refuses in any case.
"""

from pathlib import Path

from artifacts.stage import Input
from artifacts.store import Store
from tasks.handles import Verifier
from tasks.settings import Settings


def check(settings: Settings, verifier: Verifier) -> None:
    """Refuse sizes that do not divide, where the verifier's configuration lies here.

    Sizes that a parent draft brings are asked of it (``parents``).
    """
    from kimi_adapters.config import read_config
    from kimi_adapters.draft_sizes import draft_sizes
    from kimi_adapters.recipe import Recipe

    folder = place(Store(Path(settings.store.path)), verifier.source) if verifier.source else None
    if folder is not None and settings.training.parent is None:
        draft_sizes(Recipe.from_dict(settings.training.recipe()), read_config(folder))


def place(store: Store, source: Input) -> Path | None:
    """The folder of an input; None where the store has only its record."""
    if source.ref is None:
        return Path(str(source.path))
    return store.folder(source.ref.digest) if store.has(source.ref.digest) else None
