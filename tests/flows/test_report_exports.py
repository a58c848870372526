"""What the report says of checkpoints and of published drafts that were judged beside ours."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from artifacts.stage import Made, Node, Stage
from artifacts.store import Store
from artifacts.writer import ArtifactWriter
from flows.report import lineage
from flows.report_compared import compared_section
from flows.train_draft import DraftRun
from tasks.formats import ACCEPTANCE

FACTS: dict[str, Any] = {"method": "replay", "length": 2.0, "low": 1.5, "high": 2.5, "per_position": [0.6, 0.4], "prompts": 8}


@dataclass
class Run:
    """What these sections read of a run."""

    vocabulary: Made
    training: Made
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

    found = Run(one("vocabulary", "", b"v"), one("draft", "", b"d"))
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
    text = lineage(store, ran)
    digests = [one.outputs["export"].digest for one in ran.exports if one.outputs]
    assert "| checkpoint for vllm |" in text and "| checkpoint for sglang |" in text
    assert text.endswith(
        f"The checkpoint lies in `{store.folder(digests[0])}` (vllm) and `{store.folder(digests[1])}` (sglang)."
    )
