"""The validation report that a person reads: counts, limits and slices as JSON and as markdown. No text of conversations."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tasks.checked_corpus import CheckedCorpus
from tasks.markdown import markdown_table
from tasks.sample_decisions import Drop, NormLimits, Reason

NORMS, SUPERVISED, SLICES, REASONS = "norms.png", "supervised.png", "slices.png", "reasons.png"
_MOST_ROWS = 40  # of slices in the markdown; the JSON has all


def summarize(
    corpus: CheckedCorpus,
    limits: Mapping[str, NormLimits],
    reasons: Mapping[Reason, np.ndarray],
    dropped: Mapping[Drop, np.ndarray],
) -> dict[str, Any]:
    """The content of report.json."""
    aside = np.logical_or.reduce(list(reasons.values()))
    out = np.logical_or.reduce(list(dropped.values()))
    held_out = corpus.arrays["held_out"]
    everything = np.ones(len(corpus), bool)
    return {
        "samples": len(corpus),
        "tokens": int(corpus.arrays["tokens"].sum()),
        "supervised": int(corpus.arrays["supervised"].sum()),
        "shards": len(corpus.digests),
        "read": int(corpus.arrays["read"].sum()),
        "left": {side: int((~aside & ~out & where).sum()) for side, where in (("train", ~held_out), ("held_out", held_out))},
        "quarantined": int(aside.sum()),
        "reasons": {reason.value: int(chosen.sum()) for reason, chosen in reasons.items() if chosen.any()},
        "dropped": {drop.value: int(chosen.sum()) for drop, chosen in dropped.items() if chosen.any()},
        "faults": [fault.value for fault in dict.fromkeys([*corpus.faults, *corpus.evidence.faults()])],
        "evidence": corpus.evidence.as_dict(),
        "norms": {name: _norms(corpus, name, limit) for name, limit in limits.items()},
        **corpus.means(everything),
        "greedy": corpus.means(corpus.arrays["greedy"]),
        "slices": list(_slices(corpus, aside, out)),
    }


def _norms(corpus: CheckedCorpus, name: str, limit: NormLimits) -> dict[str, float]:
    values = corpus.arrays[f"norm.{name}"][corpus.finite]
    ends = (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)
    named = {"median": limit.median, "low": limit.low, "high": limit.high, "least": ends[0], "most": ends[1]}
    return {"deviation": round(limit.deviation, 6), **{key: round(value, 4) for key, value in named.items()}}


def _slices(corpus: CheckedCorpus, aside: np.ndarray, out: np.ndarray) -> Iterator[dict[str, Any]]:
    """A row a slice: by dimension, the larger first. One pass over the samples a dimension, however many values it has."""
    arrays = corpus.arrays
    scored = arrays["scored"].astype(np.float64)
    summed = {
        "samples": np.ones(len(corpus)),
        **{name: arrays[name] for name in ("tokens", "supervised", "scored", "agreed")},
        "log_prob": np.nan_to_num(arrays["score"].astype(np.float64)) * scored,
        "quarantined": aside,
        "dropped": out,
    }
    for column, (name, values) in enumerate(corpus.tables.items()):
        codes = arrays["slices"][:, column] + 1  # 0: has no such slice
        sums = {key: np.bincount(codes, each, len(values) + 1)[1:].tolist() for key, each in summed.items()}
        rows = [
            _slice(f"{name}={value}", {key: each[place] for key, each in sums.items()}) for place, value in enumerate(values)
        ]
        yield from sorted(rows, key=lambda row: -row["supervised"])


def _slice(name: str, sums: dict[str, float]) -> dict[str, Any]:
    agreed, log_prob = sums.pop("agreed"), sums.pop("log_prob")
    scored = sums["scored"]
    return {
        "slice": name,
        **{key: int(value) for key, value in sums.items()},
        "score": round(log_prob / scored, 4) if scored else None,
        "agreement": round(agreed / scored, 4) if scored else None,
    }


def put_aside(
    corpus: CheckedCorpus, reasons: Mapping[Reason, np.ndarray], dropped: Mapping[Drop, np.ndarray]
) -> Iterator[bytes]:
    """A JSON line for each sample that is left out: its shard and the digest of that's ids, number, id, reasons, measures."""
    out = np.logical_or.reduce([*reasons.values(), *dropped.values()])
    shard, ids = -1, []
    for place in np.flatnonzero(out):
        if corpus.shard[place] != shard:
            shard = int(corpus.shard[place])
            ids = corpus.ids_of(shard)
        number = int(corpus.number[place])
        line = {
            "shard": shard,
            "ids": corpus.digests[shard],
            "sample": number,
            "id": ids[number],
            "reasons": [reason.value for reason, chosen in reasons.items() if chosen[place]],
            "dropped": [drop.value for drop, chosen in dropped.items() if chosen[place]],
            "norms": {name: _number(corpus.arrays[f"norm.{name}"][place], 4) for name in corpus.states},
            "score": _number(corpus.arrays["score"][place], 4),
            "repetition": _number(corpus.arrays["repetition"][place], 4),
        }
        yield json.dumps(line).encode() + b"\n"


def _number(value: Any, digits: int) -> float | None:
    return round(float(value), digits) if np.isfinite(value) else None


def markdown(report: Mapping[str, Any]) -> str:
    """report.md: the same for a person, the plots beside it."""
    lines = [
        "# Validation",
        "",
        f"{report['samples']:,} samples in {report['shards']:,} shards, {report['tokens']:,} tokens, "
        f"{report['supervised'] / max(1, report['tokens']):.0%} of them supervised. "
        f"{report['quarantined']:,} in quarantine, {sum(report['dropped'].values()):,} dropped; left: "
        f"{report['left']['train']:,} to train on, {report['left']['held_out']:,} held out. "
        f"The stored states of {report['read']:,} samples were read again; statistics were taken of all.",
        *(["", *(f"**Fault: {fault}.**" for fault in report["faults"])] if report["faults"] else []),
        "",
        f"![samples put aside by reason]({REASONS})",
        "",
        "## State norms",
        "",
        markdown_table(
            ["state", "median", "limits", "found", "deviation"],
            [
                [
                    name,
                    f"{one['median']:,.4g}",
                    f"{one['low']:,.4g} to {one['high']:,.4g}",
                    f"{one['least']:,.4g} to {one['most']:,.4g}",
                    f"{one['deviation']:.1%}",
                ]
                for name, one in report["norms"].items()
            ],
        ),
        "",
        f"![norms by state]({NORMS})",
        "",
        "## On-policy score",
        "",
        _scored("All scored tokens", report) + " " + _scored("Greedy answers of this verifier", report["greedy"]),
        "",
        *(["![score and agreement by slice](" + SLICES + ")", ""] if report["slices"] else []),
        "## Slices",
        "",
        slice_table(report["slices"]),
        "",
        f"![supervised tokens a sample]({SUPERVISED})",
        "",
    ]
    return "\n".join(lines)


def _scored(what: str, means: Mapping[str, Any]) -> str:
    if not means["scored"]:
        return f"{what}: none."
    return (
        f"{what}: {means['scored']:,}, mean log-probability {means['score']:.2f}, "
        f"{means['agreement']:.1%} are the verifier's likeliest token."
    )


def slice_table(rows: list[dict[str, Any]]) -> str:
    """Counts, score, agreement and what was put aside by slice, in markdown."""
    if not rows:
        return "The samples carry no slices."
    cells = [
        [
            row["slice"],
            *(f"{row[name]:,}" for name in ("samples", "tokens", "supervised")),
            "" if row["score"] is None else f"{row['score']:.2f}",
            "" if row["agreement"] is None else f"{row['agreement']:.1%}",
            *(f"{row[name]:,}" for name in ("quarantined", "dropped")),
        ]
        for row in rows[:_MOST_ROWS]
    ]
    head = ["slice", "samples", "tokens", "supervised", "score", "agreement", "quarantined", "dropped"]
    more = f"\n\n{len(rows) - len(cells):,} more slices are in report.json." if len(rows) > len(cells) else ""
    return markdown_table(head, cells) + more
