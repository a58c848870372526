"""The report's section about costs: nodes that ran and hit, time and bytes, by stage."""

from collections.abc import Sequence

from artifacts.records import Record, Records
from artifacts.store import BlobMissing, Store
from running.tables import STAGE_HEADER, size, stage_rows
from running.walk import Step
from tasks.markdown import markdown_table


def records_of(store: Store, steps: list[Step]) -> list[Record]:
    """The records of a run's nodes: read once, there may be ten thousand."""
    records = Records(store.root)
    return [record for step in steps if step.key and (record := records.get(step.stage, step.key))]


def costs(store: Store, steps: list[Step], records: Sequence[Record]) -> str:
    """A row a stage; seconds of this run, then those that all its nodes took when they were made, hits included."""
    rows = []
    for row in stage_rows(steps):
        made = [record for record in records if record.stage == row[0]]
        digests = {ref.digest for record in made for ref in record.outputs.values()}
        seconds = sum(record.lineage.get("seconds") or 0.0 for record in made)
        rows.append([*row[:4], f"{seconds:,.1f}", size(sum(_bytes(store, digest) for digest in digests)), row[4]])
    header = [*STAGE_HEADER[:3], "seconds now", "seconds when made", "size", STAGE_HEADER[4]]
    return f"## What ran\n\n{markdown_table(header, rows)}"


def _bytes(store: Store, digest: str) -> int:
    try:
        return store.manifest(digest).size
    except BlobMissing:
        return 0
