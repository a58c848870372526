"""The report's section about costs: nodes that ran and hit, time and bytes, by stage."""

from artifacts.records import Records
from artifacts.store import BlobMissing, Store
from running.tables import STAGE_HEADER, size, stage_rows
from running.walk import Step
from tasks.markdown import markdown_table


def costs(store: Store, steps: list[Step]) -> str:
    """A row a stage; seconds of this run, then those that all its nodes took when they were made, hits included."""
    records = Records(store.root)
    rows = []
    for row in stage_rows(steps):
        mine = [step for step in steps if step.stage == row[0] and step.key]
        made = [record for step in mine if (record := records.get(step.stage, step.key or ""))]
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
