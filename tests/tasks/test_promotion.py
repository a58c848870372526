"""The stage that decides: what acceptance wrote of both drafts, by each method in order, becomes a decision."""

import json
from pathlib import Path
from typing import Any

import pytest

from artifacts.manifest import Ref
from artifacts.stage import Made, Node, Stage
from artifacts.writer import ArtifactWriter
from tasks import promotion
from tasks.formats import ACCEPTANCE, SAMPLES
from tasks.promotion import DECISION, Judged
from tasks.settings import Settings
from tests.tasks.stage_jobs import Bench

FACTS = {"length": 1.8, "low": 1.7, "high": 1.9, "untrained_length": 1.0}
PROMPTS: list[dict[str, Any]] = [{"id": f"p{i}"} for i in range(10)]
SAMPLED: list[dict[str, Any]] = [{"shard": i % 2, "sample": i // 2} for i in range(20)]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, tmp_path)


def judged(bench: Bench, draft: str, decoded: int | None, replayed: int) -> Judged:
    """A draft with its acceptances as the flow has them, real decoding first: so many tokens in each case's ten steps."""
    found = []
    for method, tokens, places in (("real decoding", decoded, PROMPTS), ("replay", replayed, SAMPLED)):
        if tokens is None:
            continue
        cases = [{**place, "steps": 10, "tokens": tokens + number % 3} for number, place in enumerate(places)]
        facts: dict[str, Any] = {"method": method, "prompts": len(cases), **FACTS}
        facts |= {"lossless": len(cases)} if method == "real decoding" else {}
        found.append(made(bench, "acceptance", ACCEPTANCE, json.dumps({**facts, "cases": cases})))
    return Judged(draft, found)


def made(bench: Bench, kind: str, name: str, content: str) -> Made:
    writer = ArtifactWriter(kind, bench.workspace)
    writer.write(name, content.encode())
    return Made(Node(Stage(kind, "", ()), "", {}, {}), {kind: bench.store.commit(writer.seal())})


def decide(bench: Bench, candidate: Judged, champion: Judged | None) -> tuple[Ref, dict[str, Any]]:
    """The decision by the stage's own node: its reference and what is written in it."""
    lines = ["".join(json.dumps({"slices": {"script": script}}) + "\n" for _ in range(10)) for script in ("latin", "greek")]
    masks = [made(bench, "loss_masks", SAMPLES, text).input("loss_masks") for text in lines]
    node = promotion.node(Settings(), "the verifier", candidate, champion, masks)  # type: ignore[arg-type]
    inputs = {name: source.digest for name, source in node.inputs.items()}  # type: ignore[union-attr]
    digest = bench.job(promotion.compute, node.settings, inputs)["decision"]
    return bench.refs[digest], json.loads((bench.store.open(digest) / DECISION).read_text())


def test_real_decoding_decides_where_both_have_judged(bench: Bench) -> None:
    ref, whole = decide(bench, judged(bench, "new", 18, 14), judged(bench, "old", 15, 14))
    assert (ref.facts["verdict"], ref.facts["candidate"], ref.facts["champion"]) == ("promote", "new", "old")
    assert ref.facts["methods"] == ["real decoding", "replay"] and "by real decoding of 10 samples" in whole["reasons"][0]
    rows = [
        (row["method"], row["slice"], row["samples"], round(row["candidate"] - row["champion"], 4)) for row in whole["rows"]
    ]
    assert rows == [
        ("real decoding", "all", 10, 0.3),
        ("replay", "all", 20, 0.0),
        ("replay", "script=greek", 10, 0.0),
        ("replay", "script=latin", 10, 0.0),
    ]


def test_replay_may_refuse_what_real_decoding_would_promote(bench: Bench) -> None:
    ref, whole = decide(bench, judged(bench, "new", 18, 12), judged(bench, "old", 15, 14))
    assert ref.facts["verdict"] == "refuse" and "in replay of all samples" in whole["reasons"][0]
    assert all("real decoding" not in reason for reason in whole["reasons"])


def test_the_first_draft_is_judged_by_each_method(bench: Bench) -> None:
    ref, whole = decide(bench, judged(bench, "new", 18, 14), None)
    assert (ref.facts["verdict"], ref.facts["champion"]) == ("promote", "")
    assert [reason.partition(" of ")[0] for reason in whole["reasons"]] == [
        f"there is no champion yet, and by {method}" for method in ("real decoding", "replay")
    ]


def test_other_samples_are_not_compared(bench: Bench) -> None:
    with pytest.raises(RuntimeError, match="were judged by real decoding on different samples"):
        decide(bench, judged(bench, "new", 18, 14), judged(bench, "old", None, 14))


@pytest.mark.parametrize("champion", [None, "old"])
def test_a_draft_that_nothing_has_judged_is_refused_by_its_name(bench: Bench, champion: str | None) -> None:
    ref, whole = decide(bench, Judged("new", []), Judged(champion, []) if champion else None)
    assert ref.facts["verdict"] == "refuse" and ref.facts["methods"] == whole["rows"] == []
    assert (ref.facts["candidate"], ref.facts["champion"]) == ("new", champion or "")
    assert whole["reasons"] == ["neither real decoding nor replay has judged it: hold conversations out (corpus.held_out)"]
