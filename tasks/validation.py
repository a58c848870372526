"""Validation: a node a shard reads everything that training would, a merge reports and puts bad samples aside."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from artifacts.manifest import MANIFEST_NAME, Manifest, digest_file
from artifacts.stage import Made, Node, Stage
from errors import UserError
from running.job import Job
from tasks.formats import CHECK, QUARANTINE, REPORT, STATES, read_masks, read_tokens, state_rows
from tasks.handles import Shard
from tasks.settings import Settings

STAGE = Stage("validation", module=__name__, libraries=("numpy",))


def shard_nodes(settings: Settings, shards: list[Shard], states: list[Made]) -> list[Node]:
    """A node a shard."""
    chosen = {
        "max_norm_ratio": settings.validation.max_norm_ratio,
        "min_supervised": settings.validation.min_supervised,
    }
    return [
        Node(
            STAGE,
            shard.name,
            chosen,
            {"ids": shard.ids, "masks": shard.masks, "states": made.input("states")},
            tokens=shard.tokens,
        )
        for shard, made in zip(shards, states, strict=True)
    ]


def merge_node(checks: list[Made]) -> Node:
    """The report over all shards, and what training must leave out."""
    inputs = {f"check.{i}": made.input("check") for i, made in enumerate(checks)}
    return Node(STAGE, "report", {}, inputs, entry="merge")


def compute(job: Job) -> None:
    """Check one shard: digests, finiteness, lengths, token counts, norms by layer, masks."""
    from kimi_adapters.tensor_file import TensorFile

    ids, offsets = read_tokens(job.input("ids"))
    mask, samples = read_masks(job.input("masks"))
    folder = job.input("states")
    _verify_bytes(folder / STATES, Manifest.model_validate_json((folder / MANIFEST_NAME).read_bytes()))
    file = TensorFile(folder / STATES)
    if not len(ids) == len(mask) == offsets[-1] or len(samples) != len(offsets) - 1:
        raise UserError(f"the tokens and masks of {job.label} do not belong together: run the corpus again")
    if any(entry.shape[0] != len(ids) for entry in file.entries.values()):
        raise UserError(f"the states of {job.label} do not have {len(ids)} tokens: extract them again")
    reasons: dict[int, str] = {}
    norms: dict[str, float] = {}
    for name in file.entries:
        by_sample = _norms(state_rows(file, name), offsets)
        finite = np.isfinite(by_sample)
        middle = float(np.median(by_sample[finite])) if finite.any() else 0.0
        norms[name] = round(middle, 4)
        ratio = job.settings["max_norm_ratio"]
        for i in np.flatnonzero(~finite):
            reasons.setdefault(int(i), f"{name} is not finite")
        for i in np.flatnonzero(finite & ((by_sample > middle * ratio) | (by_sample < middle / ratio))):
            reasons.setdefault(int(i), f"{name} has an outlying norm")
    supervised = np.add.reduceat(mask.astype(np.int64), offsets[:-1])
    for i in np.flatnonzero(supervised < job.settings["min_supervised"]):
        reasons.setdefault(int(i), "too few supervised tokens")
    quarantined = [{"sample": i, "id": samples[i]["id"], "reason": reasons[i]} for i in sorted(reasons)]
    counts = _count(reasons.values())
    check = {
        "ids": job.digests["ids"],
        "samples": len(samples),
        "tokens": len(ids),
        "supervised": int(supervised.sum()),
        "norms": norms,
        "reasons": counts,
        "quarantined": quarantined,
    }
    writer = job.writer("shard_check")
    writer.write(CHECK, json.dumps(check, indent=1).encode())
    sealed = writer.seal(samples=len(samples), tokens=len(ids), quarantined=len(reasons), reasons=counts, norms=norms)
    job.finish({"check": sealed}, tokens=len(ids))


def _verify_bytes(path: Path, manifest: Manifest) -> None:
    expected = next(entry.blake3 for entry in manifest.files if entry.path == path.name)
    if digest_file(path) != expected:
        raise UserError(f"{path} does not have the bytes that were written: delete its blob folder and run again")


def _norms(rows: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The median row norm of each sample, F64 [n]; NaN where any of its values is not finite.

    A median, because the first token of a sample is an attention sink with a norm a hundred times the others'.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.sqrt(np.square(rows, dtype=np.float64).sum(axis=1))
    return np.array([np.median(lengths[a:b]) if np.isfinite(lengths[a:b]).all() else np.nan for a, b in _spans(offsets)])


def _spans(offsets: np.ndarray) -> list[tuple[int, int]]:
    return list(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True))


def _count(reasons: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(reasons).items()))


def merge(job: Job) -> None:
    """Put the shards' checks together; outputs: ``report`` and ``quarantine`` (all that training reads of it)."""
    checks = [json.loads((folder / CHECK).read_text()) for folder in job.inputs("check")]
    total = {name: sum(check[name] for check in checks) for name in ("samples", "tokens", "supervised")}
    reasons: dict[str, int] = {}
    for check in checks:
        for reason, count in check["reasons"].items():
            reasons[reason] = reasons.get(reason, 0) + count
    norms = {name: round(float(np.median([c["norms"][name] for c in checks])), 4) for name in checks[0]["norms"]}
    quarantined = sum(reasons.values())
    aside = {c["ids"]: [one["sample"] for one in c["quarantined"]] for c in checks if c["quarantined"]}
    quarantine = job.writer("quarantine")
    quarantine.write(QUARANTINE, json.dumps(aside, sort_keys=True).encode())
    report = job.writer("validation_report")
    report.write(REPORT, json.dumps({**total, "reasons": reasons, "norms": norms, "shards": checks}, indent=1).encode())
    job.finish(
        {
            "quarantine": quarantine.seal(samples=quarantined),
            "report": report.seal(
                samples=total["samples"],
                tokens=total["tokens"],
                quarantined=quarantined,
                rate=round(quarantined / max(1, total["samples"]), 6),
                reasons=dict(sorted(reasons.items())),
                mask_coverage=round(total["supervised"] / max(1, total["tokens"]), 6),
                norms=norms,
            ),
        }
    )
