"""Promotion: whether a candidate takes the champion's place, decided by what both accepted on the same samples.

The decision is an artifact, so that the lineage says why. Moving the alias is the flow's work.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

from artifacts.stage import Input, Made, Node, Stage
from running.job import Job
from tasks.formats import ACCEPTANCE, SAMPLES
from tasks.settings import Settings

STAGE = Stage("promotion", module=__name__, libraries=("numpy",))
DECISION = "decision.json"


@dataclasses.dataclass(frozen=True)
class Judged:
    """A draft, by its digest, and its acceptances; nothing has judged one of which there is no acceptance."""

    draft: str
    by: list[Made]


def node(settings: Settings, scope: str, candidate: Judged, champion: Judged | None, masks: list[Input]) -> Node:
    """The one node: the acceptances of a candidate and of the champion (None of one yet), and the masks of all shards, which
    tell the slices of each sample. ``scope`` is the verifier's."""
    inputs = {f"candidate.{i}": made.input("acceptance") for i, made in enumerate(candidate.by)}
    inputs |= {f"champion.{i}": made.input("acceptance") for i, made in enumerate(champion.by)} if champion else {}
    inputs |= {f"masks.{i}": one for i, one in enumerate(masks)} if champion else {}
    chosen = settings.promotion.model_dump(include={"margin", "confidence", "max_slice_loss", "min_samples"})
    drafts = {"candidate": candidate.draft, "champion": champion.draft if champion else ""}
    return Node(STAGE, "", {"verifier": scope, **drafts, **chosen}, inputs)


def compute(job: Job) -> None:
    """Decide; output: ``decision``, with a row for each measure and slice."""
    from tasks.promotion_rule import Rule, decide

    settings = job.settings
    champions = job.inputs("champion")
    measures = []
    for place, folder in enumerate(job.inputs("candidate")):
        mine = _read(folder)
        theirs = _read(champions[place]) if champions else None
        measures.append(_measure(mine, theirs, job.inputs("masks")))
    verdict = decide(measures, Rule(**{field.name: settings[field.name] for field in dataclasses.fields(Rule)}))
    facts = {
        "verdict": "promote" if verdict.promote else "refuse",
        "reasons": verdict.reasons,
        "candidate": settings["candidate"],
        "champion": settings["champion"],
        "verifier": settings["verifier"],
        "methods": [measure.method for measure in measures],
    }
    writer = job.writer("decision")
    whole = {**facts, "notes": verdict.notes, "rows": verdict.rows}
    writer.write(DECISION, json.dumps(whole, indent=1).encode())
    job.finish({"decision": writer.seal(**facts)})


def _read(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / ACCEPTANCE).read_text())
    return found


def _measure(mine: dict[str, Any], theirs: dict[str, Any] | None, masks: list[Path]) -> Any:
    """What both drafts did, sample by sample."""
    import numpy as np

    from tasks.promotion_rule import Measure

    facts = {name: value for name, value in mine.items() if name != "cases"}
    if theirs is None:
        return Measure(facts, None)
    if [_place(case) for case in mine["cases"]] != [_place(case) for case in theirs["cases"]]:
        raise RuntimeError(f"candidate and champion were judged by {mine['method']} on different samples")
    counts = [
        (case["tokens"], case["steps"], other["tokens"], other["steps"])
        for case, other in zip(mine["cases"], theirs["cases"], strict=True)
    ]
    return Measure(facts, np.array(counts, np.int64).reshape(-1, 4), _slices(mine["cases"], masks))


def _place(case: dict[str, Any]) -> list[Any]:
    return [case.get(name) for name in ("id", "shard", "sample")]


def _slices(cases: list[dict[str, Any]], masks: list[Path]) -> list[dict[str, str]]:
    """The slices of each sample; empty for prompts, which stand in no shard."""
    if not all("shard" in case for case in cases):
        return []
    lines: dict[int, list[str]] = {}
    found = []
    for case in cases:
        shard = case["shard"]
        if shard not in lines:
            lines = {shard: (masks[shard] / SAMPLES).read_text(encoding="utf-8").split("\n")}  # shards come in order
        found.append(json.loads(lines[shard][case["sample"]]).get("slices") or {})
    return found
