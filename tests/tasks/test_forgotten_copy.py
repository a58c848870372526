"""A copy of conversations without a forgotten row is cut into the same shards, but for the one that held the row."""

import json
from pathlib import Path
from typing import Any

from artifacts import forgetting
from artifacts.lineage import Lineage
from artifacts.manifest import Ref
from artifacts.records import Records
from artifacts.stage import Input
from artifacts.store import Store
from running.job import Job, read_outputs
from tasks import corpus
from tasks.handles import Source, Verifier
from tasks.settings import Settings
from tests.artifacts.pipelines import Pipeline
from tests.projects import TOPICS


def cut(made: Pipeline, answers: Ref, verifier: Path) -> dict[str, Ref]:
    """The corpus stage over a copy of conversations, run in this process and recorded."""
    settings = Settings.model_validate({"corpus": {"max_length": 64, "shard_tokens": 120}})
    handle = Verifier("v", {"roles": {"tokenizer": "t"}}, "", Input("v", path=str(verifier)), "smollm2")
    (node,) = corpus.nodes(settings, [Source("chunk", Input.of(answers))], handle)
    events: list[dict[str, Any]] = []
    with made.store.workspace() as workspace:
        paths = {"source": made.store.open(answers.digest), "tokenizer": verifier}
        scratch = workspace / "scratch"
        job = Job("k", "", node.settings, {}, paths, {"source": answers.digest}, scratch, "cpu", 1, workspace, events.append)
        corpus.compute(job)
        outputs = {name: made.store.commit(one) for name, one in read_outputs(events[-1]).items()}
    made.node("corpus", f"chunk {answers.digest}", {"source": answers}, outputs)
    return outputs


def test_no_other_shard_moves(tmp_path: Path, whole_verifier: Path) -> None:
    made = Pipeline(Store(tmp_path), Records(tmp_path))
    rows = [
        {
            "id": f"p{n}",
            "messages": [{"role": "user", "content": topic}, {"role": "assistant", "content": "a"}],
            "prompt_ids": list(range(100, 110 + n % 3)),
            "answer_ids": [500 + n] * (5 + n % 7 + 60 * (n == 11)),  # one longer than a sample may be
        }
        for n, topic in enumerate(TOPICS)
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    answers = made.blob("conversations", {forgetting.CONVERSATIONS: text}, conversations=len(rows), tokens=1)
    made.node("synthesis", "chunk", {"prompts": "/data/prompts.jsonl"}, {"conversations": answers})
    before = cut(made, answers, whole_verifier)
    shards = {name: ref.digest for name, ref in before.items() if name.startswith("ids.")}
    assert len(shards) > 4
    for name in ("p4", "p11"):
        lineage = Lineage.of(made.records)
        found = forgetting.Search(made.store, lineage, [name]).run()
        held = [key for key, ref in before.items() if key.startswith("ids.") and ref.digest in found.blobs]
        forgetting.forget(made.store, made.records, lineage, found)
        record = made.records.get("synthesis", made.keys["synthesis chunk"])
        assert record is not None and len(held) == 1
        after = cut(made, record.outputs["conversations"], whole_verifier)
        moved = {key for key, ref in after.items() if key.startswith("ids.") and ref.digest != before[key].digest}
        assert moved == set(held) and set(after) == set(before)
        assert after["rejects"].facts["forgotten"] == before["rejects"].facts["forgotten"] + 1
        before = after
