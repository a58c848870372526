"""The report's section about costs: nodes that ran and hit, time and bytes, by stage; and what a report keeps of records."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from artifacts.records import Record, Records
from artifacts.store import BlobMissing, Store
from running.show import proof_of
from running.tables import STAGE_HEADER, size, stage_rows
from running.walk import Step
from tasks.markdown import markdown_table


@dataclass(frozen=True)
class Noted:
    """What a report tells of a record: ten thousand whole ones take a gigabyte.

    ``adopted`` is when, and on what it rests; ``trained`` a sentence about a training.
    """

    stage: str
    digests: tuple[str, ...]
    seconds: float
    adopted: tuple[str, str] | None
    trained: str | None


def noted(store: Store, steps: Sequence[Step]) -> list[Noted]:
    """Of the records of a run's nodes, each read once."""
    return [_noted(record) for record in _records(store, steps)]


def _records(store: Store, steps: Sequence[Step]) -> Iterator[Record]:
    records = Records(store.root)
    for step in steps:
        if step.key and (record := records.get(step.stage, step.key)):
            yield record


def _noted(record: Record) -> Noted:
    adopted = record.lineage.get("adopted")
    return Noted(
        record.stage,
        tuple(ref.digest for ref in record.outputs.values()),
        record.lineage.get("seconds") or 0.0,
        (adopted["finished"], proof_of(adopted)) if adopted else None,
        _trained(record) if record.stage == "training" else None,
    )


def _trained(record: Record) -> str:
    known = record.lineage
    libraries = [
        f"{name.removeprefix('library ')} {version}" for name, version in record.parts.items() if name.startswith("library ")
    ]
    where, commit = known.get("gpu") or known.get("device", "an unknown device"), known.get("git_commit") or "unknown"
    return (
        f"Trained on {known.get('finished', 'an unknown day')} on {where} with git commit {commit}, Python "
        f"{known.get('python', '?')}, {', '.join(libraries)}."
    )


def costs(store: Store, steps: list[Step], records: Sequence[Noted]) -> str:
    """A row a stage; seconds of this run, then those that all its nodes took when they were made, hits included."""
    rows = []
    for row in stage_rows(steps):
        made = [record for record in records if record.stage == row[0]]
        digests = {digest for record in made for digest in record.digests}
        seconds = sum(record.seconds for record in made)
        rows.append([*row[:4], f"{seconds:,.1f}", size(sum(_bytes(store, digest) for digest in digests)), row[4]])
    header = [*STAGE_HEADER[:3], "seconds now", "seconds when made", "size", STAGE_HEADER[4]]
    return f"## What ran\n\n{markdown_table(header, rows)}"


def _bytes(store: Store, digest: str) -> int:
    try:
        return store.manifest(digest).size
    except BlobMissing:
        return 0
