"""Adoption: what older code made is taken over under newer code that was shown, on some nodes, to make the same.

A key differs when a module or a library does, although the bytes would be the same. Where they are costly, some nodes are made
again; if those prove it, the others' records are written under their new keys. Records say so for ever.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from artifacts.key import Parts
from artifacts.records import Record, Records
from running.host import Host
from running.locks import key_lock
from running.walk import Decision, Walk, digest_of

_CODE = ("module ", "library ")


Pairs = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Candidate:
    """A node, and the newest record that differs from it in code and library versions alone."""

    decision: Decision
    before: Record


def candidates(records: Records, decisions: Sequence[Decision]) -> list[list[Candidate]]:
    """Nodes of one stage in groups whose outputs one code made: what is shown of some of a group holds for the rest of it.

    Nodes that were made under the code of now are among them, since they show it too; adopted ones show nothing.
    """
    groups: dict[Pairs, list[Candidate]] = {}
    older = _older_by_work(records, decisions[0])
    for decision in decisions:
        before = older.get(_work(decision.parts))
        if before is not None and not (decision.record and decision.record.lineage.get("adopted")):
            groups.setdefault(_code(_origin(records, before).parts), []).append(Candidate(decision, before))
    return [group for group in groups.values() if any(one.decision.record is None for one in group)]


def _older_by_work(records: Records, one: Decision) -> dict[Pairs, Record]:
    """The newest record of other code for each piece of work of a stage."""
    newest: dict[Pairs, Record] = {}
    now = _code(one.parts)
    for path in (records.root / one.node.stage.name).glob("[!.]*.json"):
        record = records.get(one.node.stage.name, path.stem)
        if record is None or _code(record.parts) == now:
            continue
        work = _work(record.parts)
        if work not in newest or _age(record) > _age(newest[work]):
            newest[work] = record
    return newest


def _work(parts: Parts) -> Pairs:
    return frozenset((name, value) for name, value in parts.items() if not name.startswith(_CODE))


def _code(parts: Parts) -> Pairs:
    return frozenset((name, value) for name, value in parts.items() if name.startswith(_CODE))


def _age(record: Record) -> str:
    return str(record.lineage.get("adopted", record.lineage).get("finished", ""))


def _origin(records: Records, record: Record) -> Record:
    """The record of the node that really ran; what was adopted within a tolerance is not compared with what adopted it."""
    while adopted := record.lineage.get("adopted"):
        before = records.get(record.stage, adopted["from"])
        if before is None:
            return record
        record = before
    return record


def changes(group: Sequence[Candidate]) -> list[str]:
    """Modules and libraries that differ between what made the group and now."""
    before, now = _code(group[0].before.parts), _code(group[0].decision.parts)
    return sorted({name for name, _ in before ^ now})


def equal(proof: Sequence[Candidate], made: Sequence[Record]) -> bool:
    """Whether every output of nodes that were made again has the bytes that it had."""
    return all(
        {name: ref.digest for name, ref in one.before.outputs.items()}
        == {name: ref.digest for name, ref in again.outputs.items()}
        for one, again in zip(proof, made, strict=True)
    )


def take_over(host: Host, walk: Walk, rest: Sequence[Candidate], proof: Sequence[Candidate], how: dict[str, Any]) -> None:
    """Write the records of ``rest`` under their new keys. ``how``: what was shown and, within a tolerance, why it is enough."""
    exact = how["by"] == "equal bytes"
    shown = {**how, "proof": [one.decision.key for one in proof], "finished": datetime.now(UTC).isoformat(timespec="seconds")}
    for one in rest:
        decision, before = one.decision, one.before
        lineage = {**before.lineage, "adopted": {"from": before.key, **shown}}
        lineage["reproducible"] = exact and before.reproducible
        stage = decision.node.stage.name
        record = Record(
            key=decision.key,
            stage=stage,
            node=decision.node.name,
            parts=decision.parts,
            outputs=before.outputs,
            lineage=lineage,
        )
        with key_lock(host.state, decision.key, decision.node.label, lambda: None):
            if walk.records.get(stage, decision.key) is None:
                walk.records.put(record)
        if walk.mirroring:
            walk.mirroring.offer(stage, decision.key)
        decision.step.digest = digest_of(record.outputs)
