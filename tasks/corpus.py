"""Corpus: one source file of conversations becomes token shards, loss masks apart from them, and rejects with reasons.

A token shard is a function of its source file alone: conversations in file order, cut when ``shard_tokens`` is reached.
"""

import json
from collections.abc import Callable
from typing import Any

from artifacts.stage import Input, Made, Node, Stage
from artifacts.writer import Sealed
from errors import UserError
from running.job import Job
from tasks.formats import CONVERSATIONS, REJECTS
from tasks.handles import Shard, Source, Verifier
from tasks.settings import Settings

STAGE = Stage("corpus", module=__name__, libraries=("tokenizers", "numpy", "pyarrow"))


def files(settings: Settings, memo: Any) -> list[Source]:
    """The user's own files, each checked to be there and not empty."""
    from tasks.corpus_files import sources

    return sources(settings, memo)


def synthesized(made: list[Made]) -> list[Source]:
    """What synthesis gave, as sources."""
    return [Source(one.node.name, one.input("conversations"), one.node.tokens // 4) for one in made]


def _nobody(source_digest: str) -> list[str]:
    return []


def nodes(
    settings: Settings, sources: list[Source], verifier: Verifier, forgotten: Callable[[str], list[str]] = _nobody
) -> list[Node]:
    """A node a source file. ``forgotten`` gives, for a source's digest, BLAKE3 of the ids of the conversations to leave out."""
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
            {
                **chosen,
                # Chunks of one prompts file are one source: how many there are must not change what is said of a sample.
                "source": source.name.partition(", chunk ")[0],
                "forgotten": sorted(forgotten(source.input.digest)) if isinstance(source.input, Input) else [],
            },
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
    from tasks.conversations import Choices, Reader
    from tasks.shard_cutter import ShardCutter

    source = job.input("source")
    own = source.is_dir()
    path = source / CONVERSATIONS if own else source
    choices = Choices(
        max_length=job.settings["max_length"],
        held_out=job.settings["held_out"],
        source=job.settings["source"],
        forgotten=frozenset(job.settings["forgotten"]),
        trusted=own,
        limit=job.settings["limit"],
    )
    writer = job.writer("rejects")
    with writer.open(REJECTS) as file:

        def reject(number: int, reason: str) -> None:
            file.write(json.dumps({"line": number, "reason": reason}).encode() + b"\n")

        reader = Reader(Tokenizer(job.input("tokenizer")), chat_format(job.settings["chat_format"]), choices, reject)
        cutter = ShardCutter(job.writer, job.settings["shard_tokens"])
        total = path.stat().st_size / 1e6
        for one in reader.samples(
            path, None if own else job.digests["source"], lambda done: job.progress(done / 1e6, total, "MB")
        ):
            cutter.add(one)
        cutter.close()
    counts = reader.counts
    if not counts.conversations and not counts.forgotten:
        common = max(counts.reasons, key=lambda name: counts.reasons[name], default="no rows")
        raise UserError(f"{path} gave no usable conversation in {counts.rows} rows (most often: {common}): check its format")
    outputs: dict[str, Sealed] = {**cutter.outputs, "rejects": writer.seal(**counts.facts())}
    job.finish(outputs, tokens=cutter.tokens)
