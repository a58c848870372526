"""The draft's vocabulary: special tokens first, then what training answers use most; or a parent's, or one given."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from artifacts.stage import Input, Node, Pending, Stage
from errors import UserError
from running.job import Job
from tasks import given_vocabulary
from tasks.formats import VOCABULARY, read_masks, read_tokens
from tasks.handles import Shard, Verifier
from tasks.settings import Settings

STAGE = Stage("vocabulary", module=__name__, libraries=("numpy",))
_MOST_SLICES = 50


def check(settings: Settings, verifier: Verifier) -> None:
    """Refuse a draft vocabulary larger than the target's."""
    target = verifier.facts["vocab_size"] if verifier.facts else None
    if target is not None and settings.vocabulary.mapping is None and settings.vocabulary.size > target:
        raise UserError(f"vocabulary.size is {settings.vocabulary.size} and the verifier has {target} tokens: lower it")


def node(settings: Settings, shards: list[Shard], verifier: Verifier, memo: Any, parent: Input | Pending | None = None) -> Node:
    """The one node; reads tokens and masks, never states, and of a parent draft the vocabulary. ``memo`` remembers digests."""
    inputs = {f"ids.{i}": shard.ids for i, shard in enumerate(shards)}
    inputs |= {f"masks.{i}": shard.masks for i, shard in enumerate(shards)}
    inputs["tokenizer"] = verifier.input("tokenizer")
    target = verifier.facts["vocab_size"] if verifier.facts else 0
    chosen: dict[str, Any] = {"size": settings.vocabulary.size, "target_size": target}
    if settings.vocabulary.mapping is not None:
        inputs["mapping"] = given_vocabulary.find(settings.vocabulary.mapping, memo)
        del chosen["size"]
    if parent:
        inputs["parent"] = parent
        chosen["min_parent_coverage"] = settings.training.min_parent_coverage
    return Node(STAGE, "", chosen, inputs, tokens=sum(shard.tokens for shard in shards))


def choose(counts: np.ndarray, special: list[int], size: int) -> np.ndarray:
    """``size`` token ids, rising: the special ones, then by falling count, ties and unused ones by id."""
    order = np.argsort(-counts, kind="stable")
    forced = np.zeros(len(counts), bool)
    forced[special] = True
    others = order[~forced[order]][: size - forced.sum()]
    return np.sort(np.concatenate([np.flatnonzero(forced), others]))


def keep(counts: np.ndarray, special: list[int], parent: np.ndarray, best: np.ndarray, share: float) -> bool:
    """Whether a parent's token ids stay: they cover ``share`` of the supervised tokens that the ids of ``best`` do, and hold
    every special token that is supervised, without which no draft could end an answer.

    ``counts`` I64 [target]: how often each token is supervised.
    """
    held = np.zeros(len(counts), bool)
    held[parent] = True
    needed = [token for token in special if counts[token]]
    return bool(counts[parent].sum() >= share * counts[best].sum() and held[needed].all())


def compute(job: Job) -> None:
    """Count, choose and write ``d2t`` (I64 offsets) and ``t2d`` (BOOL); both are left out when the sizes are equal."""
    from kimi_adapters.tensor_file import TensorWriter
    from kimi_adapters.tokenizer import Tokenizer

    target = job.settings["target_size"]
    counts, total = _count(job, target)
    special = [token for token in Tokenizer(job.input("tokenizer")).special_ids() if token < target]
    selected, facts = _select(job, counts["train"], special)
    size = len(selected)
    t2d = np.zeros(target, bool)
    t2d[selected] = True
    writer = job.writer("vocabulary")
    with writer.open(VOCABULARY) as file:
        entries = [] if size == target else [("d2t", "I64", (size,)), ("t2d", "BOOL", (target,))]
        tensors = TensorWriter(file, entries)
        if entries:
            tensors.write("d2t", selected - np.arange(size))
            tensors.write("t2d", t2d)
        tensors.close()
    coverage = {side: float(count[selected].sum() / max(1, count.sum())) for side, count in counts.items()}
    slices = coverage_by_slice(zip(job.inputs("ids"), job.inputs("masks"), strict=True), t2d)
    vocabulary = writer.seal(
        size=size,
        target_size=target,
        special=len(special),
        coverage=round(coverage["train"], 6),
        held_out_coverage=round(coverage["held_out"], 6),
        **facts,
        coverage_by_slice={name: round(covered / supervised, 6) for name, (covered, supervised) in slices.items()},
        supervised_by_slice={name: supervised for name, (_, supervised) in slices.items()},
    )
    job.finish({"vocabulary": vocabulary}, tokens=total)


def _select(job: Job, counts: np.ndarray, special: list[int]) -> tuple[np.ndarray, dict[str, Any]]:
    """The vocabulary's token ids, rising, and the facts of where they are from."""
    if "mapping" in job.paths:
        needed = [token for token in special if counts[token]]
        return given_vocabulary.read_ids(job.input("mapping"), len(counts), needed), {}
    size = job.settings["size"]
    if len(special) > size:
        raise UserError(f"vocabulary.size is {size}, fewer than the verifier's {len(special)} special tokens: raise it")
    best = choose(counts, special, size)
    return _of_parent(job, counts, special, best) if "parent" in job.paths else (best, {})


def _of_parent(job: Job, counts: np.ndarray, special: list[int], best: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
    """The parent draft's token ids where they stay, else ``best``; and which, with the parent's coverage, as facts."""
    from kimi_adapters.published_draft import read_published

    vocabulary = read_published(job.input("parent")).vocabulary
    ids = np.arange(len(counts)) if vocabulary is None else vocabulary.targets().numpy()
    if len(ids) and ids[-1] >= len(counts):
        raise UserError("training.parent names a draft for more tokens than the verifier has: give a draft of this verifier")
    kept = keep(counts, special, ids, best, job.settings["min_parent_coverage"])
    coverage = float(counts[ids].sum() / max(1, counts.sum()))
    return (ids if kept else best), {"parent": "kept" if kept else "replaced", "parent_coverage": round(coverage, 6)}


def _count(job: Job, target: int) -> tuple[dict[str, np.ndarray], int]:
    """How often each token is supervised on either side, I64 [target], and the number of all tokens."""
    counts = {side: np.zeros(target, np.int64) for side in ("train", "held_out")}
    total = 0
    for ids_folder, masks_folder in zip(job.inputs("ids"), job.inputs("masks"), strict=True):
        ids, offsets = read_tokens(ids_folder)
        mask, samples = read_masks(masks_folder)
        total += len(ids)
        sides = np.repeat([sample["side"] == "held_out" for sample in samples], np.diff(offsets))
        for side, chosen in (("train", ~sides), ("held_out", sides)):
            counts[side] += np.bincount(ids[chosen & (mask > 0)], minlength=target)
    return counts, total


def coverage_by_slice(shards: Iterable[tuple[Path, Path]], t2d: np.ndarray) -> dict[str, tuple[int, int]]:
    """(covered, all) supervised tokens of the train side for each slice ("script=latin") that has some, by name.

    ``shards`` are folders of ids and masks, ``t2d`` BOOL [target]. A second reading of the ids, so that memory does not grow
    with slices x vocabulary. Of a dimension with more than ``_MOST_SLICES`` values (sources) the largest are kept.
    """
    covered, supervised = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for ids_folder, masks_folder in shards:
        ids, offsets = read_tokens(ids_folder)
        mask, samples = read_masks(masks_folder)
        owner = np.repeat(np.arange(len(samples)), np.diff(offsets))
        of_sample = np.bincount(owner, mask > 0, len(samples)).astype(int).tolist()
        inside = np.bincount(owner, (mask > 0) & t2d[ids], len(samples)).astype(int).tolist()
        for sample, count, hits in zip(samples, of_sample, inside, strict=True):
            if sample["side"] == "train" and count:
                for part in (sample.get("slices") or {}).items():
                    supervised[part] += count
                    covered[part] += hits
    found: dict[str, tuple[int, int]] = {}
    for dimension in sorted({name for name, _ in supervised}):
        largest = sorted((-count, value) for (name, value), count in supervised.items() if name == dimension)[:_MOST_SLICES]
        found |= {f"{dimension}={value}": (covered[dimension, value], -count) for count, value in largest}
    return found
