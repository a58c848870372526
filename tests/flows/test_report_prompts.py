"""An evaluation prompt that the draft learned from is said in the report and the log, by its id and never by its text."""

import json
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from artifacts.stage import Made, Node, Stage
from artifacts.store import Store
from artifacts.writer import ArtifactWriter
from flows.report_prompts import seen_prompts
from flows.train_draft import DraftRun
from kimi_adapters.chat_rows import conversation_of
from tasks.formats import SAMPLES
from tasks.samples import known_of, samples_of
from tasks.settings import Settings
from tasks.windows import Window

ROWS = [
    ("a1", "Name three  rivers.", 0.0),  # trained on
    ("b1", "Name three lakes.", 1.0),  # held out
    ("c1", "Why is the sky blue?", 0.0),
]
FACTS = ("tokens", "samples", "train_samples", "held_out_samples", "train_supervised", "held_out_supervised")
PROMPTS = ["name three rivers.", "Name three lakes.", "Name three hills."]


@dataclass
class Run:
    """What this section reads of a run."""

    corpora: list[Made]
    judged: list[Made]
    legacy: list[Made] = field(default_factory=list)
    engines: list[Made] = field(default_factory=list)


def line(name: str, question: str, held_out: float) -> bytes:
    """A sample's line, as the corpus writes it."""
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": "Well."}]
    known = known_of({"id": name}, conversation_of({"messages": turns}), ("", ""), "a", held_out, False)
    ids, mask = np.arange(4, dtype=np.int32), np.array([0, 0, 1, 1], np.uint8)
    (sample,) = samples_of(known, ids, mask, [Window(0, 4, 0)], "<512")
    return json.dumps(sample.line).encode() + b"\n"


def node(stage: str, entry: str = "compute") -> Node:
    return Node(Stage(stage, f"tasks.{stage}", ()), "a", {}, {}, entry=entry)


def test_a_prompt_that_was_trained_on_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(tmp_path / "store")
    with store.workspace() as workspace:
        writer = ArtifactWriter("loss_masks", workspace)
        writer.write(SAMPLES, b"".join(line(*row) for row in ROWS))
        masks = store.commit(writer.seal(**dict.fromkeys(FACTS, 3)))
    path = tmp_path / "prompts.jsonl"
    rows = [{"id": f"p{i}", "messages": [{"role": "user", "content": text}]} for i, text in enumerate(PROMPTS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = Run([Made(node("corpus"), {"masks.0": masks})], [Made(node("acceptance", "compute_decoding"), {})])
    settings = Settings.model_validate({"acceptance": {"prompts": str(path)}})
    with caplog.at_level(logging.WARNING, "eyas"):
        (told,) = seen_prompts(settings, store, cast(DraftRun, run))
    assert "1 of 3 evaluation prompts" in told and "(p0)" in told and "rivers" not in told
    assert "1 of 3 evaluation prompts" in caplog.text
    replayed = Run(run.corpora, [Made(node("acceptance", "compute_replay"), {})])
    assert seen_prompts(settings, store, cast(DraftRun, replayed)) == [], "nothing asked them"
    few = Settings.model_validate({"acceptance": {"prompts": str(path), "max_prompts": 1}})
    assert seen_prompts(few, store, cast(DraftRun, run))[0].startswith("**Warning: 1 of 1 ")
    store.delete(masks.digest)
    assert seen_prompts(settings, store, cast(DraftRun, run)) == [], "masks that were collected are not made again"
