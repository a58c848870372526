"""The champion beside a new draft: its figures only where the same answers judged it in the same way."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from artifacts.aliases import Aliases
from artifacts.key import node_parts
from artifacts.manifest import Ref
from artifacts.records import Record, Records, read_record
from artifacts.stage import Input, Made
from artifacts.store import Store
from flows.report_cases import LEAST
from flows.report_data import facts_ref, open_whole
from tasks.champions import CHAMPION, scope
from tasks.handles import Verifier
from tasks.paired import difference

_DRAFTS = ("input draft", "input start")  # what differs between two drafts that the same answers judge


@dataclass(frozen=True)
class Champion:
    """The champion of the verifier, as the answers that judged the new draft judge it.

    ``itself``: the new draft is the champion. ``facts``: those of its acceptance, None where other answers judged it.
    ``longer`` bounds (95%) by how many tokens a step the new draft is longer, None where there are too few answers.
    """

    itself: bool = False
    facts: dict[str, Any] | None = None
    longer: tuple[float, float] | None = None


def champion(store: Store, aliases: Aliases, verifier: Verifier, one: Made) -> Champion | None:
    """The champion beside an acceptance of a new draft; None where the verifier has none yet."""
    name, draft = scope(verifier), one.node.inputs["draft"]
    its = aliases.get(name, CHAMPION) if name else None
    if its is None or not isinstance(draft, Input):
        return None
    if its == draft.digest:
        return Champion(itself=True)
    asked = _answers(node_parts(one.node))
    judged = [record for record in _acceptances(Records(store.root)) if _draft(record) == its]
    alike = [record for record in judged if _answers(record.parts) == asked]
    if not alike:
        return Champion()
    newest = max(alike, key=lambda record: str(record.lineage.get("finished"))).outputs["acceptance"]
    return Champion(facts=newest.facts, longer=_longer(store, facts_ref(one, "acceptance"), newest))


def _longer(store: Store, mine: Ref, its: Ref) -> tuple[float, float] | None:
    ours, theirs = open_whole(store, mine), open_whole(store, its)
    found = difference(ours, theirs) if ours and theirs else None
    return (found.low, found.high) if found and found.samples >= LEAST else None


def _acceptances(records: Records) -> Iterator[Record]:
    for path in sorted((records.root / "acceptance").glob("[!.]*.json")):
        try:
            yield read_record(path)
        except (FileNotFoundError, ValueError):
            continue


def _draft(record: Record) -> str | None:
    blob: str | None = record.lineage["inputs"].get("draft", {}).get("blob")
    return blob


def _answers(parts: dict[str, str]) -> dict[str, str]:
    """The parts of a key that say which answers judge, and how: all but the draft, code and libraries."""
    kept = ("entry", "setting ", "input ")
    return {name: value for name, value in parts.items() if name.startswith(kept) and name not in _DRAFTS}
