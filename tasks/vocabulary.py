"""The draft's vocabulary: special tokens first, then what the training side's answers use most."""

import numpy as np

from artifacts.stage import Made, Node, Stage
from errors import UserError
from running.job import Job
from tasks.formats import VOCABULARY
from tasks.handles import Shard, Verifier
from tasks.settings import Settings

STAGE = Stage("vocabulary", module=__name__, libraries=("numpy",))


def check(settings: Settings, verifier: Verifier) -> None:
    """Refuse a draft vocabulary larger than the target's."""
    target = verifier.facts["vocab_size"] if verifier.facts else None
    if target is not None and settings.vocabulary.size > target:
        raise UserError(f"vocabulary.size is {settings.vocabulary.size} and the verifier has {target} tokens: lower it")


def node(settings: Settings, shards: list[Shard], verifier: Verifier) -> Node:
    """The one node; reads tokens and masks, never states."""
    inputs = {f"ids.{i}": shard.ids for i, shard in enumerate(shards)}
    inputs |= {f"masks.{i}": shard.masks for i, shard in enumerate(shards)}
    inputs["tokenizer"] = verifier.input("tokenizer")
    target = verifier.facts["vocab_size"] if verifier.facts else 0
    chosen = {"size": settings.vocabulary.size, "target_size": target}
    return Node(STAGE, "", chosen, inputs, tokens=sum(shard.tokens for shard in shards))


def choose(counts: np.ndarray, special: list[int], size: int) -> np.ndarray:
    """``size`` token ids, rising: the special ones, then by falling count, ties and unused ones by id."""
    order = np.argsort(-counts, kind="stable")
    forced = np.zeros(len(counts), bool)
    forced[special] = True
    others = order[~forced[order]][: size - forced.sum()]
    return np.sort(np.concatenate([np.flatnonzero(forced), others]))


def compute(job: Job) -> None:
    """Count, choose and write ``d2t`` (I64 offsets) and ``t2d`` (BOOL); both are left out when the sizes are equal."""
    from kimi_adapters.tensor_file import TensorWriter
    from kimi_adapters.tokenizer import Tokenizer
    from tasks.formats import read_masks, read_tokens

    size, target = job.settings["size"], job.settings["target_size"]
    counts = {side: np.zeros(target, np.int64) for side in ("train", "held_out")}
    total = 0
    for ids_folder, masks_folder in zip(job.inputs("ids"), job.inputs("masks"), strict=True):
        ids, offsets = read_tokens(ids_folder)
        mask, samples = read_masks(masks_folder)
        total += len(ids)
        sides = np.repeat([sample["side"] == "held_out" for sample in samples], np.diff(offsets))
        for side, chosen in (("train", ~sides), ("held_out", sides)):
            counts[side] += np.bincount(ids[chosen & (mask > 0)], minlength=target)
    special = [token for token in Tokenizer(job.input("tokenizer")).special_ids() if token < target]
    if len(special) > size:
        raise UserError(f"vocabulary.size is {size}, fewer than the verifier's {len(special)} special tokens: raise it")
    selected = choose(counts["train"], special, size)
    writer = job.writer("vocabulary")
    with writer.open(VOCABULARY) as file:
        entries = [] if size == target else [("d2t", "I64", (size,)), ("t2d", "BOOL", (target,))]
        tensors = TensorWriter(file, entries)
        if entries:
            t2d = np.zeros(target, bool)
            t2d[selected] = True
            tensors.write("d2t", selected - np.arange(size))
            tensors.write("t2d", t2d)
        tensors.close()
    coverage = {side: float(count[selected].sum() / max(1, count.sum())) for side, count in counts.items()}
    vocabulary = writer.seal(
        size=size,
        target_size=target,
        special=len(special),
        coverage=round(coverage["train"], 6),
        held_out_coverage=round(coverage["held_out"], 6),
    )
    job.finish({"vocabulary": vocabulary}, tokens=total)


def coverage(made: Made) -> float | None:
    """Share of the training side's supervised tokens that the draft can propose."""
    ref = made.ref("vocabulary")
    return ref.facts["coverage"] if ref else None
