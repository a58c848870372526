"""The parent of a warm start: a draft of the store by digest or alias, or the folder of a published one.

The flow asks while it plans. No stage reaches this module: the nodes take the input that it finds, by its content.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from artifacts.aliases import Aliases
from artifacts.manifest import Ref, canonical_json, digest_bytes
from artifacts.records import Records, read_record
from artifacts.stage import Input, Pending
from artifacts.store import BlobMissing, Store
from errors import UserError
from tasks.champions import scope
from tasks.draft_shape import place
from tasks.handles import Verifier
from tasks.settings import Settings

_DIGITS = re.compile(r"[0-9a-f]{6,64}$")
_ALIAS = re.compile(r"[a-z][a-z0-9_-]*$")
_CONFIG = "config.json"


def find(settings: Settings, verifier: Verifier, layer_ids: list[int], memo: Any) -> Input | Pending | None:
    """The draft that ``training.parent`` names, None where it names none.

    ``UserError``: nothing of that name, several, or a draft that the recipe does not fit. ``memo`` remembers digests.
    """
    named = settings.training.parent
    if named is None:
        return None
    if verifier.facts is None:
        return Pending(verifier.because)
    store = Store(Path(settings.store.path))
    found = _of_alias(settings, store, verifier, named) or _of_digest(store, named) or _of_folder(named, memo)
    if found is None:
        raise UserError(
            f"training.parent is {named!r}: no alias of this verifier's drafts, no beginning (6 digits or more) of the digest "
            f"of a draft in {store.root}, and no folder with a {_CONFIG}; correct it"
        )
    _check(settings, store, verifier, layer_ids, found)
    return found


def _of_alias(settings: Settings, store: Store, verifier: Verifier, named: str) -> Input | None:
    if not _ALIAS.match(named):
        return None
    digest = Aliases(Path(settings.store.state)).get(str(scope(verifier)), named)
    if digest is None:
        return None
    ref = next(iter(_drafts(store, digest)), None)
    if ref is None:
        raise UserError(f"training.parent is {named}, an alias of {digest[:12]}, which is no draft of the store {store.root}")
    return Input(ref.digest, ref=ref, path=named)


def _of_digest(store: Store, named: str) -> Input | None:
    if not _DIGITS.match(named):
        return None
    matching = {ref.digest: ref for ref in reversed(list(_drafts(store, named)))}
    if len(matching) > 1:
        raise UserError(f"training.parent is {named}, and {len(matching)} drafts begin so: give more digits")
    return next((Input.of(ref) for ref in matching.values()), None)


def _drafts(store: Store, beginning: str) -> Iterator[Ref]:
    """The drafts whose digests begin so: those that the records of training know, then those of which there is a blob."""
    for path in sorted((Records(store.root).root / "training").glob("[!.]*.json")):
        try:
            refs = read_record(path).outputs.values()
        except (FileNotFoundError, ValueError):
            continue
        yield from (ref for ref in refs if ref.kind == "draft" and ref.digest.startswith(beginning))
    for folder in sorted(store.folder(beginning).parent.glob(f"{beginning}*")):
        try:
            if store.manifest(folder.name).kind == "draft":
                yield Ref(kind="draft", digest=folder.name, facts={})
        except BlobMissing:
            continue


def _of_folder(named: str, memo: Any) -> Input | None:
    from kimi_adapters.published_config import published_files

    folder = Path(named).absolute()
    if not (folder / _CONFIG).is_file():
        return None
    files = published_files(folder)
    content = dict(zip((path.name for path in files), memo.digests(files), strict=True))
    return Input(digest_bytes(canonical_json(content)), path=str(folder))


def _check(settings: Settings, store: Store, verifier: Verifier, layer_ids: list[int], found: Input) -> None:
    """Refuse a recipe that the parent does not fit, where both configurations lie here; training's child does in any case."""
    from kimi_adapters.config import read_config
    from kimi_adapters.draft_sizes import draft_sizes
    from kimi_adapters.inheritance import inherit
    from kimi_adapters.published_config import read_published_config
    from kimi_adapters.recipe import Recipe

    parent, target = place(store, found), place(store, verifier.source) if verifier.source else None
    if parent is None or target is None:
        return
    sizes = read_config(target)
    recipe = inherit(Recipe.from_dict(settings.training.recipe()), read_published_config(parent, sizes), sizes, layer_ids)
    draft_sizes(recipe, sizes)
