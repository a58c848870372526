"""Synthesis by an endpoint: the engine that serves the verifier answers prompts, many at once over all chunks in hand.

Token ids are the engine's own. Each answer is kept in the chunk's scratch folder as it comes: a killed task asks for the rest.
"""

from pathlib import Path
from typing import Any

from artifacts.manifest import canonical_json, digest_bytes
from artifacts.stage import Input, Node, Stage
from running.job import Job
from tasks import endpoint
from tasks.handles import Verifier
from tasks.prompts import read_prompts
from tasks.settings import Settings

STAGE = Stage(
    "endpoint_synthesis",
    module=__name__,
    libraries=("tokenizers",),
    reproducible=False,
    retries=1,
    device="endpoint",
    gathers=True,
)


def check(settings: Settings) -> None:
    """Refuse an endpoint that could not be asked."""
    if settings.data.prompts:
        endpoint.check(settings, "synthesis.source")


def nodes(settings: Settings, verifier: Verifier) -> list[Node]:
    """A node for each chunk of each prompts file, as the verifier's own synthesis has them."""
    size = settings.synthesis.prompts_per_task
    found = []
    for path in settings.data.prompts:
        rows = read_prompts(path, settings.limit)
        count = -(-len(rows) // size)
        for number in range(count):
            start = number * size
            name = f"{Path(path).stem}, chunk {number + 1}/{count}"
            found.append(_node(settings, verifier, name, path, start, rows[start : start + size]))
    return found


def _node(settings: Settings, verifier: Verifier, name: str, path: str, start: int, chunk: list[dict[str, Any]]) -> Node:
    chosen = settings.synthesis
    return Node(
        STAGE,
        name,
        {
            "model": settings.endpoint.model or verifier.name,
            "max_new_tokens": chosen.max_new_tokens,
            "temperature": chosen.temperature,
            "seed": chosen.seed,
            "chat_format": verifier.chat_format,
        },
        {
            "prompts": Input(digest_bytes(canonical_json(chunk)), path=str(Path(path).absolute())),
            "tokenizer": verifier.input("tokenizer"),
        },
        tokens=len(chunk) * chosen.max_new_tokens,
        knobs={"start": start, "stop": start + len(chunk), "endpoint": endpoint.knobs(settings)},
    )


def compute(jobs: list[Job]) -> None:
    """Ask for what the chunks lack; each is finished as soon as its last answer is there.

    ``UserError``: the endpoint fails as a whole, or leaves too many prompts of a chunk unanswered. What it gave is kept.
    """
    from tasks.chunk_answers import ChunkAnswers

    told = jobs[0].knobs["endpoint"]
    chunks = [ChunkAnswers(job, told["max_errors"]) for job in jobs]
    with endpoint.client(told, jobs[0].settings["model"]) as client:
        client.require_model()
        waiting = [(chunk, number) for chunk in chunks for number in chunk.missing()]
        for chunk in chunks:
            chunk.finish_if_whole()
        for (chunk, number), found in client.each(lambda asked: asked[0].ask(client, asked[1]), waiting):
            chunk.take(number, found)
            if chunk.failed:
                client.stop()
            chunk.finish_if_whole()
    for chunk in sorted(chunks, key=lambda chunk: not chunk.failed):  # the one that stopped the others speaks
        chunk.require_answers()
