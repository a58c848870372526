"""The report as a page, its first sentence, and what it says of slices, the champion and costs."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from artifacts.aliases import Aliases
from artifacts.key import node_parts
from artifacts.manifest import Ref
from artifacts.records import Record, Records
from artifacts.stage import Input, Made, Node, Stage
from artifacts.store import Store
from artifacts.writer import ArtifactWriter
from flows.report_cases import slices
from flows.report_champion import Champion, champion
from flows.report_costs import costs, noted
from flows.report_html import page
from flows.report_verdict import judged, verdict
from flows.train_draft import DraftRun
from running.walk import Step
from tasks.champions import scope
from tasks.formats import ACCEPTANCE, SAMPLES
from tasks.handles import Verifier
from tasks.settings import Settings

ROLES = {role: role for role in ("embed", "layer", "norm", "lm_head", "numbers", "tokenizer")}
TARGET = Verifier("tiny", {"roles": ROLES}, "", Input("", path="/nowhere"), "chatml")
FACTS = {
    "method": "real decoding",
    "length": 1.5,
    "low": 1.4,
    "high": 1.6,
    "untrained_length": 1.0,
    "prompts": 20,
}


class Shop:
    """A store with its records, filled through the real writer."""

    def __init__(self, folder: Path) -> None:
        self.store, self.aliases = Store(folder / "store"), Aliases(folder / "state")
        self.records, self.workspace = Records(self.store.root), folder / "workspace"
        self.workspace.mkdir()

    def blob(self, kind: str, name: str, content: str) -> Ref:
        writer = ArtifactWriter(kind, self.workspace)
        writer.write(name, content.encode())
        ref = self.store.commit(writer.seal())
        return Ref.model_construct(kind=kind, digest=ref.digest, facts={**FACTS, "method": "replay"})

    def replay(self, draft: str, cases: list[dict[str, Any]], masks: list[str]) -> Made:
        """A replay of a draft over masks, done and recorded; ``masks`` are the lines of each shard's samples."""
        inputs: dict[str, Any] = {"draft": Input.of(self.blob("draft", "model", draft))}
        inputs |= {f"masks.{i}": Input.of(self.blob("loss_masks", SAMPLES, lines)) for i, lines in enumerate(masks)}
        node = Node(Stage("acceptance", "tasks.acceptance", ()), "replay", {"k": 3}, inputs, entry="compute_replay")
        made = Made(node, {"acceptance": self.blob("acceptance", ACCEPTANCE, json.dumps({"cases": cases}))})
        named = {name: {"digest": source.digest, "blob": source.digest, "path": None} for name, source in inputs.items()}
        lineage = {"inputs": named, "seconds": 2.5, "finished": draft}
        parts = {**node_parts(node), "module tasks.acceptance": draft}
        key = (f"{draft:x<64}").encode().hex()[:64]
        self.records.put(
            Record(key=key, stage="acceptance", node="replay", parts=parts, outputs=made.outputs or {}, lineage=lineage)
        )
        return made


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def cases(tokens: int, count: int = 12) -> list[dict[str, int]]:
    """A case of ten steps for each of two shards' samples; the answers differ, each in the same way for every draft."""
    return [{"shard": i % 2, "sample": i // 2, "steps": 10, "tokens": tokens + i % 3} for i in range(count)]


def lines(length: str, count: int = 6) -> str:
    return "".join(json.dumps({"slices": {"tools": "off", "length": length}}) + "\n" for _ in range(count))


MASKS = [lines("<512"), lines("<2k")]


def test_answers_are_counted_by_what_their_samples_are(shop: Shop) -> None:
    made = shop.replay("new", [*cases(15), {"shard": 0, "sample": 0, "steps": 0, "tokens": 0}], MASKS)
    text = "\n".join(slices(shop.store, [made]))
    rows = {line.split(" | ")[0].strip("| "): line for line in text.splitlines() if "=" in line}
    assert list(rows) == ["length=<512", "length=<2k", "tools=off"]
    assert "| 6 | 96 | 1.60 | fewer than 8 answers |" in rows["length=<512"]
    assert "| 12 | 192 | 1.60 | 1.5" in rows["tools=off"]


def crown(shop: Shop, judged: Made) -> None:
    """Let the draft of a replay be the verifier's champion."""
    name, draft = scope(TARGET), judged.node.inputs["draft"]
    assert name and isinstance(draft, Input)
    shop.aliases.move(name, "champion", draft.digest, None, "the first")


def test_the_champion_counts_where_the_same_answers_judged_it(shop: Shop) -> None:
    old, new = shop.replay("old", cases(13), MASKS), shop.replay("new", cases(15), MASKS)
    assert champion(shop.store, shop.aliases, TARGET, new) is None, "there is none yet"
    crown(shop, old)
    found = champion(shop.store, shop.aliases, TARGET, new)
    assert found and not found.itself and found.longer == pytest.approx((0.2, 0.2)), "what an answer gives both cancels"
    assert champion(shop.store, shop.aliases, TARGET, old) == Champion(itself=True)
    others = shop.replay("other", cases(15), [lines("<8k"), MASKS[1]])
    assert champion(shop.store, shop.aliases, TARGET, others) == Champion(), "other answers judged it"
    fewer = shop.replay("fewer", cases(15, 7), MASKS)
    few = champion(shop.store, shop.aliases, TARGET, fewer)
    assert few and few.facts and few.longer is None
    elsewhere = Verifier("other", {"roles": {**ROLES, "norm": "other"}}, "", TARGET.source, "chatml")
    assert champion(shop.store, shop.aliases, elsewhere, new) is None


@pytest.mark.parametrize(
    ("facts", "best", "limit", "words"),
    [
        ({}, None, None, "**Serve this draft**: 1.50 tokens a verifier step (95%: 1.40 to 1.60), 1.00 untrained."),
        ({}, None, 5, "**Do not serve this draft: it comes from a smoke run** (`limit` is 5)."),
        ({"prompts": 7}, None, None, "**Not decided: only 7 answers"),
        ({"low": 0.99}, None, None, "**Do not serve this draft: it is not shown to be better than an untrained"),
        ({"method": "replay"}, None, None, "**Not decided: try this draft in your engine first**"),
        (
            {},
            Champion(False, {"length": 1.3}, (0.1, 0.3)),
            None,
            "**Serve this draft**: 1.50 tokens a verifier step (95%: 1.40 to 1.60), 1.00 untrained, 1.30 the champion "
            "(longer by +0.10 to +0.30); slices are not compared with the champion's here",
        ),
        (
            {},
            Champion(False, {"length": 1.3}, (-0.1, 0.3)),
            None,
            "**Do not serve this draft: it is not shown to be better than the ch",
        ),
        ({}, Champion(False, {"length": 1.3}), None, "**Do not serve this draft: it is not shown"),
        ({}, Champion(), None, "**Not decided: other answers judged the champion**"),
        ({}, Champion(itself=True), None, "**Go on serving this draft"),
    ],
)
def test_the_first_sentence_decides(facts: dict[str, Any], best: Champion | None, limit: int | None, words: str) -> None:
    assert judged(Settings(limit=limit), {**FACTS, **facts}, best).startswith(words)


def test_the_first_sentence_obeys_the_limits_of_promotion() -> None:
    settings = Settings.model_validate({"promotion": {"margin": 0.2, "min_samples": 20}})
    best = Champion(False, {"length": 1.3}, (0.2, 0.4))
    assert judged(settings, FACTS, best).startswith("**Do not serve this draft: it is not shown to be better than the ch")
    assert judged(settings, FACTS, Champion(False, {"length": 1.3}, (0.21, 0.4))).startswith("**Serve")
    assert judged(settings, FACTS, None).startswith("**Serve this draft**")
    assert judged(settings, {**FACTS, "low": 1.2}, None).startswith(
        "**Do not serve this draft: it is not shown to be better than an"
    )
    assert judged(settings, {**FACTS, "prompts": 19}, None).startswith("**Not decided: only 19 answers")


def test_what_only_an_engine_has_judged_is_not_decided() -> None:
    nothing = cast(DraftRun, SimpleNamespace(judged=[]))
    assert verdict(Settings(), nothing, {}).startswith(
        "**Not decided: neither real decoding nor replay has judged this draft**"
    )


def test_costs_count_hits_as_they_were_made(shop: Shop) -> None:
    made = shop.replay("new", cases(15), MASKS)
    (path,) = (shop.records.root / "acceptance").glob("*.json")
    step = Step("acceptance", "replay", "hit", key=path.stem)
    bytes_of = shop.store.manifest((made.outputs or {})["acceptance"].digest).size
    steps = [step, Step("export", "", "hit")]
    assert f"| acceptance | 0 | 1 | 0.0 | 2.5 | {bytes_of} B |  |" in costs(shop.store, steps, noted(shop.store, steps))


def test_the_page_needs_nothing_else_and_obeys_no_text() -> None:
    text = "# A\n\n> **Serve**\n\n| source |\n| --- |\n| <script>alert(1)</script> |\n\n![p](data:image/png;base64,AAAA)\n"
    html = page("a <b>", text)
    assert "<title>a &lt;b&gt;</title>" in html and "<blockquote>" in html and "<td>&lt;script&gt;" in html
    assert '<img src="data:image/png;base64,AAAA"' in html and "prefers-color-scheme: dark" in html
    assert "<script" not in html and not re.search(r"""(?:src|href)=["'](?!data:)""", html)
