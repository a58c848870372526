"""Legacy samples: folders of speculators' v1 files become token shards, masks and states like our own, a node a shard.

No verifier runs for them, and no pickled code: ``kimi_adapters/pt_file.py`` reads the files. What they hold and by which
convention says ``tasks/legacy_samples.py``; validation then judges them as it judges extracted states.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from artifacts.manifest import digest_file
from artifacts.stage import Input, Made, Node, Stage
from errors import UserError
from kimi_adapters.pt_file import PtFile
from running.job import Job
from tasks.formats import STATES, STATS
from tasks.handles import Shard, Verifier
from tasks.legacy_samples import DTYPES, LegacySample, check_layers, cut_files, read_sample, sample_files
from tasks.settings import Settings

STAGE = Stage("legacy", module=__name__, libraries=("torch", "numpy", "tokenizers"))


def nodes(
    settings: Settings, layer_ids: list[int], verifier: Verifier, memo: Any, forgotten: Callable[[str], list[str]]
) -> list[Node]:
    """A node for each shard of each folder, cut by the files' sizes. ``memo`` knows the digests of files.

    ``UserError`` before anything runs: folders or first files that do not fit the settings.
    """
    facts = verifier.facts or {"hidden_size": 0, "vocab_size": 0, "num_layers": 0}
    chosen = {
        "layer_ids": layer_ids,
        "hidden_size": facts["hidden_size"],
        "vocab_size": facts["vocab_size"],
        "held_out": settings.corpus.held_out,
    }
    found = []
    for folder in map(Path, settings.data.legacy_states):
        files = sample_files(folder)[: settings.limit]
        each = 4 * max(1, facts["hidden_size"])  # bytes a token were it one state of float32, until the first file is known
        if verifier.facts:
            check_layers(folder, layer_ids, settings.hidden_states.layer_ids is not None, facts["num_layers"])
            with PtFile(files[0]) as file:
                first = read_sample(file, len(layer_ids) + 1, facts["hidden_size"], facts["vocab_size"])
            each = sum(state.nbytes for state in first.states) // len(first.ids)
        sizes, digests = [path.stat().st_size for path in files], memo.digests(files)
        cuts = cut_files(sizes, each, settings.corpus.shard_tokens)
        for number, cut in enumerate(cuts):
            inputs = {f"sample.{i}": Input(digests[n], path=str(files[n].absolute())) for i, n in enumerate(cut)}
            gone = sorted({one for n in cut for one in forgotten(digests[n])})
            found.append(
                Node(
                    STAGE,
                    f"shard {number + 1}/{len(cuts)} of {folder.name}",
                    {**chosen, "source": folder.name, "forgotten": gone},
                    {**inputs, "tokenizer": verifier.input("tokenizer")},
                    tokens=sum(sizes[n] // each for n in cut),
                    output_bytes=sum(sizes[n] for n in cut),
                )
            )
    return found


def shards(made: list[Made]) -> list[Shard]:
    """The token shards, in order; their states are outputs of the same nodes."""
    found = []
    for one in made:
        ids = one.ref("ids")
        found.append(
            Shard(one.node.name, one.input("ids"), one.input("masks"), ids.facts["tokens"] if ids else one.node.tokens)
        )
    return found


def compute(job: Job) -> None:
    """Read one shard's files; outputs: ``ids``, ``masks``, ``states``, ``stats``."""
    from kimi_adapters.tokenizer import Tokenizer
    from tasks.samples import Sample
    from tasks.shard_writer import write_shard

    tokenizer = Tokenizer(job.input("tokenizer"))
    files = job.inputs("sample")
    kept: list[tuple[Path, LegacySample, Sample]] = []
    for number, path in enumerate(files):
        if digest_file(path) != job.digests[f"sample.{number}"]:
            raise UserError(f"{path} changed while the run went on: run again when nothing writes into its folder")
        with PtFile(path) as file:
            layers = len(job.settings["layer_ids"]) + 1
            stored = read_sample(file, layers, job.settings["hidden_size"], job.settings["vocab_size"])
        sample = _known(job, stored, tokenizer)
        if sample is not None:
            kept.append((path, stored, sample))
        job.progress(number + 1, layers * len(files), "files")
    if not kept:
        raise UserError(f"every sample of {job.label} was forgotten: remove its files from data.legacy_states")
    if len(dtypes := {stored.states[0].dtype for _, stored, _ in kept}) > 1:
        raise UserError(f"the samples of {job.label} have states of {' and '.join(sorted(dtypes))}: keep folders of one dtype")
    ids, masks = write_shard(job.writer, [sample for _, _, sample in kept])
    states, stats = _write_states(job, [(path, stored) for path, stored, _ in kept])
    job.finish({"ids": ids, "masks": masks, "states": states, "stats": stats}, tokens=ids.ref.facts["tokens"])


def _known(job: Job, stored: LegacySample, tokenizer: Any) -> Any:
    """The sample with its line; None where it was forgotten. Without a conversation, its decoded text stands for one."""
    from tasks.samples import known_of, samples_of
    from tasks.windows import Window, length_bucket

    ids = stored.ids.tolist()
    supervised = stored.mask.nonzero()[0]
    asked = ids[: int(supervised[0])] if len(supervised) else ids
    text = (tokenizer.decode(ids, keep_special=True), tokenizer.decode(asked, keep_special=True))
    known = known_of({}, None, text, job.settings["source"], job.settings["held_out"], trusted=False)
    if known.id_digest() in job.settings["forgotten"]:
        return None
    return next(samples_of(known, stored.ids, stored.mask, [Window(0, len(ids), 0)], length_bucket(len(ids))))


def _write_states(job: Job, kept: list[tuple[Path, LegacySample]]) -> tuple[Any, Any]:
    """The states' bytes as they are stored, state by state, with one sample's in memory; and their statistics."""
    import numpy as np
    import torch

    from kimi_adapters.tensor_file import TensorWriter
    from kimi_adapters.weights import torch_dtype
    from tasks.arrays import write_arrays
    from tasks.state_stats import StateStats

    layer_ids, hidden = job.settings["layer_ids"], job.settings["hidden_size"]
    names = [*(f"layer.{k}" for k in layer_ids), "last"]
    stored = kept[0][1].states[0].dtype
    offsets = np.cumsum([0, *(len(sample.ids) for _, sample in kept)], dtype=np.int64)
    total, stats, artifact = int(offsets[-1]), StateStats(offsets), job.writer("hidden_states")
    with artifact.open(STATES) as target:
        writer = TensorWriter(target, [(name, stored, (total, hidden)) for name in names])
        for place, name in enumerate(names):
            for number, (path, sample) in enumerate(kept):
                with PtFile(path) as file:
                    content = file.bytes(sample.states[place])
                stats.add(name, torch.frombuffer(content, dtype=torch_dtype(stored)).reshape(-1, hidden))
                writer.write(name, content)
                job.progress((place + 1) * len(kept) + number + 1, (len(names) + 1) * len(kept), "files")
        writer.close()
    aside = job.writer("state_stats")
    with aside.open(STATS) as target:
        write_arrays(target, stats.arrays)
    return (
        artifact.seal(tokens=total, hidden_size=hidden, layer_ids=layer_ids, dtype=DTYPES[stored]),
        aside.seal(tokens=total, samples=len(kept), not_finite=stats.not_finite),
    )
