"""The report's account of single answers: which slices the draft does well in, and the same answers under the champion."""

import json
from collections.abc import Iterable
from typing import Any

from artifacts.manifest import Ref
from artifacts.stage import Input, Made
from artifacts.store import Store
from flows.report_data import facts_ref, open_whole
from tasks.answer_interval import length_interval
from tasks.formats import ACCEPTANCE, SAMPLES
from tasks.markdown import markdown_table

LEAST = 8  # answers under which an interval says nothing
_MOST_ROWS = 40
Case = dict[str, Any]


def cases_of(store: Store, ref: Ref) -> dict[Any, Case]:
    """The answers that an acceptance counted, by what names each; empty where its file is gone."""
    folder = open_whole(store, ref)
    found = json.loads((folder / ACCEPTANCE).read_text())["cases"] if folder else []
    return {case.get("id") or (case["shard"], case["sample"]): case for case in found if case["steps"]}


def slices(store: Store, made: Iterable[Made]) -> list[str]:
    """Acceptance by length, script, thinking, tools and source, from the replay: the samples say what they are."""
    replay = next((one for one in made if one.node.entry == "compute_replay"), None)
    if replay is None:
        return []
    groups: dict[str, list[tuple[int, int]]] = {}
    for case in _sliced(store, replay):
        for name, value in case["slices"].items():
            groups.setdefault(f"{name}={value}", []).append((case["tokens"], case["steps"]))
    dimensions = list(dict.fromkeys(["length", *(name.partition("=")[0] for name in groups)]))
    order = sorted(groups, key=lambda name: (dimensions.index(name.partition("=")[0]), -len(groups[name])))
    rows = [[name, *_cells(groups[name])] for name in order[:_MOST_ROWS]]
    if not rows:
        return []
    more = [f"{len(groups) - len(rows):,} more slices are not shown."] if len(groups) > len(rows) else []
    table = markdown_table(["slice", "answers", "tokens", "acceptance length", "95% interval"], rows)
    return ["### By length and slice", "Replay on held-out answers.", table, *more]


def _cells(cases: list[tuple[int, int]]) -> list[str]:
    tokens, steps = (sum(case[i] for case in cases) for i in (0, 1))
    return [f"{len(cases):,}", f"{tokens:,}", f"{tokens / steps:.2f}", _sure(cases)]


def _sure(cases: list[tuple[int, int]]) -> str:
    if len(cases) < LEAST:
        return f"fewer than {LEAST} answers"
    low, high = length_interval(cases)
    return f"{low:.2f} to {high:.2f}"


def _sliced(store: Store, replay: Made) -> list[Case]:
    """The replay's answers with the slices of their samples; those whose masks were collected are left out."""
    cases = cases_of(store, facts_ref(replay, "acceptance"))
    found = []
    for shard in sorted({case["shard"] for case in cases.values()}):
        masks = replay.node.inputs[f"masks.{shard}"]
        assert isinstance(masks, Input)
        folder = open_whole(store, masks.ref)
        if folder is None:
            continue
        samples = [json.loads(line) for line in (folder / SAMPLES).read_text(encoding="utf-8").splitlines()]
        mine = (case for case in cases.values() if case["shard"] == shard)
        found += [case | {"slices": samples[case["sample"]].get("slices") or {}} for case in mine]
    return found
