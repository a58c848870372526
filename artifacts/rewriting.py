"""A copy of conversations without what was forgotten.

In a row's place stands ``{"id_digest": BLAKE3 of the id, "forgotten_tokens": n}``: n tokens still count where shards are cut,
so that no other shard moves. The record that made the copy then names the new one, and remembers the old under ``rewritten``.
"""

import json
from datetime import UTC, datetime
from typing import Any

from artifacts.collect import Blob
from artifacts.forgotten import id_digest
from artifacts.lineage import Lineage
from artifacts.manifest import Ref
from artifacts.records import Record
from artifacts.store import Store
from artifacts.writer import ArtifactWriter

CONVERSATIONS = "conversations.jsonl"


def rewrite(store: Store, copy: Blob, rows: dict[str, int], lineage: Lineage) -> Ref:
    """Commit a copy of conversations without the rows of ``rows`` (id -> tokens that stand for it)."""
    folder, facts = store.open(copy.digest), dict(lineage.refs[copy.digest].facts) if copy.digest in lineage.refs else {}
    with store.workspace() as workspace:
        writer = ArtifactWriter(copy.kind, workspace)
        for entry in store.manifest(copy.digest).files:
            with open(folder / entry.path, "rb") as source, writer.open(entry.path) as target:
                for line in source:
                    row = json.loads(line) if entry.path == CONVERSATIONS and line.strip() else {}
                    name = str(row.get("id"))
                    if name not in rows:
                        target.write(line)
                        continue
                    _subtract(facts, row)
                    left = {"id_digest": id_digest(name), "forgotten_tokens": rows[name]}
                    target.write(json.dumps(left).encode() + b"\n")
        return store.commit(writer.seal(**facts))


def pointing_at(record: Record, old: str, ref: Ref, count: int) -> Record:
    """The record that made the copy ``old``, naming the one without the forgotten rows instead."""
    name = next((name for name, one in record.outputs.items() if one.digest == old), None)
    if name is None:  # an older copy of it was rewritten before
        return record
    note = {"output": name, "from": old, "rows": count, "time": datetime.now(UTC).isoformat(timespec="seconds")}
    lineage = {**record.lineage, "rewritten": [*record.lineage.get("rewritten", []), note]}
    return record.model_copy(update={"outputs": {**record.outputs, name: ref}, "lineage": lineage})


def _subtract(facts: dict[str, Any], row: dict[str, Any]) -> None:
    if "conversations" in facts:
        facts["conversations"] -= 1
    if "tokens" in facts:
        facts["tokens"] -= len(row.get("answer_ids", []))
