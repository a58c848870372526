"""What the report says of checkpoints and of published drafts that were judged beside ours."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from artifacts.manifest import canonical_json, digest_bytes
from artifacts.records import Record, Records
from artifacts.stage import Input, Made, Node, Stage
from artifacts.store import Store
from artifacts.writer import ArtifactWriter
from flows.report_compared import compared_section
from flows.report_costs import noted
from flows.report_lineage import lineage
from flows.train_draft import DraftRun
from running.walk import Step
from tasks.formats import ACCEPTANCE
from tasks.handles import Verifier

FACTS: dict[str, Any] = {"method": "replay", "length": 2.0, "low": 1.5, "high": 2.5, "per_position": [0.6, 0.4], "prompts": 8}


@dataclass
class Run:
    """What these sections read of a run."""

    verifier: Verifier
    vocabulary: Made
    training: Made
    corpora: list[Made] = field(default_factory=list)
    legacy: list[Made] = field(default_factory=list)
    judged: list[Made] = field(default_factory=list)
    compared: list[Made] = field(default_factory=list)
    exports: list[Made] = field(default_factory=list)


def made(store: Store, workspace: Path, kind: str, name: str, content: bytes, **facts: Any) -> Made:
    workspace.mkdir(exist_ok=True)
    writer = ArtifactWriter(kind, workspace)
    writer.write(ACCEPTANCE, content)
    ref = store.commit(writer.seal(**facts))
    return Made(Node(Stage(kind, f"tasks.{kind}", ()), name, {}, {}), {kind: ref})


def cases(more: int) -> bytes:
    """Eight samples of ten steps, each with so many tokens more than its steps and its number."""
    rows = [{"id": f"p{i}", "tokens": 10 + i + more, "steps": 10} for i in range(8)]
    return json.dumps({"cases": rows}).encode()


def run(tmp_path: Path) -> tuple[Store, DraftRun]:
    store, workspace = Store(tmp_path / "store"), tmp_path / "workspace"

    def one(kind: str, name: str, content: bytes, **facts: Any) -> Made:
        return made(store, workspace, kind, name, content, **facts)

    verifier = Verifier("org/verifier", {"roles": {"embed": "5e1f"}}, "", Input("", path="/models/v"), None)
    found = Run(verifier, one("vocabulary", "", b"v"), one("draft", "", b"d"))
    found.judged = [one("acceptance", "replay", cases(5), **FACTS)]
    found.compared = [one("acceptance", "theirs", cases(0), **{**FACTS, "length": 1.5, "low": 1.2, "high": 1.9})]
    found.exports = [one("export", engine, engine.encode(), engine=engine) for engine in ("vllm", "sglang")]
    return store, cast(DraftRun, found)


def test_a_published_draft_stands_beside_ours_with_the_paired_difference(tmp_path: Path) -> None:
    store, ran = run(tmp_path)
    (text,) = compared_section(store, ran)
    assert "| ours | **2.00** | 1.50 to 2.50 | 60%, 40% |  |  |" in text
    assert "| theirs | **1.50** | 1.20 to 1.90 | 60%, 40% | **+0.50** | +0.50 to +0.50 |" in text
    assert "By replay, paired by sample over 8 of them." in text
    (store.open(ran.compared[0].outputs["acceptance"].digest) / ACCEPTANCE).unlink()  # type: ignore[index]
    (text,) = compared_section(store, ran)
    assert "| theirs | **1.50** | 1.20 to 1.90 | 60%, 40% |  |  |" in text, "what is gone is told by its facts"


def test_each_checkpoint_is_named_with_its_place(tmp_path: Path) -> None:
    store, ran = run(tmp_path)
    text = lineage(store, [], ran)
    digests = [one.outputs["export"].digest for one in ran.exports if one.outputs]
    assert "| checkpoint for vllm |" in text and "| checkpoint for sglang |" in text
    assert text.endswith(
        f"The checkpoint lies in `{store.folder(digests[0])}` (vllm) and `{store.folder(digests[1])}` (sglang)."
    )


def test_lineage_names_what_a_draft_was_made_of(tmp_path: Path) -> None:
    """Sources by their digests, the parent, who trained, and what was adopted on which proof."""
    store, ran = run(tmp_path)
    corpus, legacy = Stage("corpus", "tasks.corpus", ()), Stage("legacy", "tasks.legacy", ())
    ran.corpora.append(
        Made(Node(corpus, "traffic", {"source": "traffic"}, {"source": Input("7aff", path="traffic.jsonl")}), None)
    )
    for number in range(2):
        node = Node(legacy, f"old, part {number}", {"source": "old"}, {"sample.0": Input(f"{number}")})
        ran.legacy.append(Made(node, None))
    ran.training.node.inputs["parent"] = Input("9a9a", path="champion")
    adopted = {"by": "a tolerance", "proof": ["k1", "k2"], "finished": "2026-11-30", "because": "torch 2.15"}
    trained = {"git_commit": "abc123", "python": "3.11", "device": "cuda:0", "gpu": "NVIDIA H200", "finished": "2026-12-01"}
    steps = []
    for key, stage, known in (("a", "training", trained), ("b", "hidden_states", {"adopted": adopted})):
        parts = {"library torch": "2.14.1", "setting training.lr": "0.001"}
        Records(store.root).put(Record(key=key * 64, stage=stage, node="", parts=parts, outputs={}, lineage=known))
        steps.append(Step(stage, "", "hit", key=key * 64))
    text = lineage(store, noted(store, steps), ran)
    for row in (
        f"| verifier | org/verifier | `{digest_bytes(canonical_json({'embed': '5e1f'}))}` |",
        "| conversations | traffic | `7aff` |",
        "| conversations | old | 2 parts |",
        "| parent | champion | `9a9a` |",
        "Trained on 2026-12-01 on NVIDIA H200 with git commit abc123, Python 3.11, torch 2.14.1.",
        "Adopted on 2026-11-30: 1 nodes of hidden states, by a tolerance of 2 nodes made again (because torch 2.15).",
    ):
        assert row in text, text
