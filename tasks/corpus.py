"""Corpus: one source file of conversations becomes token shards, loss masks apart from them, and rejects with reasons.

A token shard is a function of its source file alone: conversations in file order, cut when ``shard_tokens`` is reached.
"""

import json
from pathlib import Path
from typing import Any

from artifacts.stage import Input, Made, Node, Stage
from artifacts.store import Sealed
from errors import UserError
from running.job import Job
from tasks.formats import CONVERSATIONS, REJECTS
from tasks.handles import Shard, Source, Verifier
from tasks.settings import Settings

STAGE = Stage("corpus", module=__name__, libraries=("tokenizers", "numpy"))
_BYTES_A_TOKEN = 8  # of a JSONL corpus; English takes 4 to 5, so the estimate is low on purpose


def files(settings: Settings, memo: Any) -> list[Source]:
    """The user's own files, each checked to be there and not empty."""
    sources = []
    for path in map(Path, settings.data.conversations):
        if not path.is_file():
            raise UserError(f"corpus file {path} does not exist: correct data.conversations")
        if path.stat().st_size == 0:
            raise UserError(f"corpus file {path} is empty: remove it from data.conversations or fill it")
        digest = memo.digest(path)
        sources.append(Source(path.stem, Input(digest, path=str(path.absolute())), path.stat().st_size // _BYTES_A_TOKEN))
    if not sources and not settings.data.prompts:
        raise UserError("data.conversations and data.prompts are both empty: give at least one file to learn from")
    return sources


def synthesized(made: list[Made]) -> list[Source]:
    """What synthesis gave, as sources."""
    return [Source(one.node.name, one.input("conversations"), one.node.tokens // 4) for one in made]


def nodes(settings: Settings, sources: list[Source], verifier: Verifier) -> list[Node]:
    """A node a source file."""
    chosen = {
        "chat_format": verifier.chat_format,
        "max_length": settings.corpus.max_length,
        "shard_tokens": settings.corpus.shard_tokens,
        "held_out": settings.corpus.held_out,
        "limit": settings.limit,
    }
    return [
        Node(
            STAGE,
            source.name,
            chosen,
            {"source": source.input, "tokenizer": verifier.input("tokenizer")},
            tokens=source.tokens,
        )
        for source in sources
    ]


def shards(corpora: list[Made]) -> list[Shard]:
    """All shards of all sources, in order; one pending shard for a source whose corpus a plan cannot know."""
    found = []
    for made in corpora:
        if made.outputs is None:
            found.append(Shard(f"every shard of {made.node.name}", made.input("ids"), made.input("masks"), made.node.tokens))
            continue
        count = sum(name.startswith("ids.") for name in made.outputs)
        for number in range(count):
            ids, masks = made.outputs[f"ids.{number}"], made.outputs[f"masks.{number}"]
            name = f"shard {number + 1}/{count} of {made.node.name}"
            found.append(Shard(name, Input.of(ids), Input.of(masks), ids.facts["tokens"]))
    return found


def compute(job: Job) -> None:
    """Read one source; outputs: ``ids.<n>``, ``masks.<n>``, ``rejects``."""
    from kimi_adapters.chat import chat_format
    from kimi_adapters.tokenizer import Tokenizer
    from tasks.conversations import Reader, Sample
    from tasks.shard_writer import write_shard

    source = job.input("source")
    path = source / CONVERSATIONS if source.is_dir() else source
    tokenizer = Tokenizer(job.input("tokenizer"))
    reader = Reader(tokenizer, chat_format(job.settings["chat_format"]), job.settings["max_length"], job.settings["held_out"])
    outputs: dict[str, Sealed] = {}
    shard: list[Sample] = []
    size = 0

    def close_shard() -> None:
        number = len(outputs) // 2
        outputs[f"ids.{number}"], outputs[f"masks.{number}"] = write_shard(job.writer, shard)
        shard.clear()

    for sample in reader.samples(path, job.digests["source"] if path == source else None, job.settings["limit"]):
        shard.append(sample)
        size += len(sample.ids)
        if size >= job.settings["shard_tokens"]:
            close_shard()
            size = 0
    if shard:
        close_shard()
    if not outputs:
        common = max(reader.reasons, key=lambda name: reader.reasons[name], default="no rows")
        raise UserError(f"{path} gave no usable conversation in {reader.rows} rows (most often: {common}): check its format")
    writer = job.writer("rejects")
    with writer.open(REJECTS) as file:
        for reject in reader.rejects:
            file.write(json.dumps(reject).encode() + b"\n")
    rejected = sum(reader.reasons.values())
    outputs["rejects"] = writer.seal(
        rows=reader.rows, samples=reader.rows - rejected, rejects=rejected, reasons=dict(sorted(reader.reasons.items()))
    )
    tokens = sum(one.ref.facts["tokens"] for name, one in outputs.items() if name.startswith("ids."))
    job.finish(outputs, tokens=tokens)
