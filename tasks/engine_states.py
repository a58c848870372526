"""Hidden states from an engine: the artifacts of ``tasks/hidden_states.py``, drawn from a vLLM that serves the verifier.

Each child proves first, on a short text, that the engine's layers, its last state and its weights are ours.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from artifacts.stage import Input, Made, Node, Pending, Stage
from errors import UserError
from running.job import Job
from tasks import endpoint
from tasks.formats import STATES, STATS, read_tokens
from tasks.handles import Shard, Verifier
from tasks.settings import Settings

STAGE = Stage(
    "engine_states",
    module=__name__,
    libraries=("torch",),
    reproducible=False,  # an engine's sums depend on what it computes at the same time
    retries=1,
    device="endpoint",
    gathers=True,
)


def check(settings: Settings) -> None:
    """Refuse an engine that cannot be asked, and a folder that is not there, where states come from an engine."""
    if settings.hidden_states.source == "own":
        return
    endpoint.check(settings, "hidden_states.source")
    folder = settings.endpoint.states_folder
    if folder is None or not Path(folder).is_dir():
        raise UserError(
            f"hidden_states.source is engine, and endpoint.states_folder is {folder or 'empty'}: give the folder that the "
            "engine writes hidden states into, on a disk that this host sees"
        )


def nodes(
    settings: Settings, shards: list[Shard], verifier: Verifier, reference: Made, layer_ids: list[int], token_bytes: int
) -> list[Node]:
    """A node a shard. Reference, norm, head and folder are read, and are in no key: no state depends on them."""
    chosen = {
        "engine": "vllm",
        "version": settings.hidden_states.engine_version,
        "layer_ids": layer_ids,
        "state_dtype": settings.hidden_states.state_dtype,
        "compute_dtype": settings.hidden_states.compute_dtype,
    }
    inputs = {
        "verifier": verifier.input("embed", "layer", "numbers"),
        "head": _beside_the_key(verifier.input("norm", "lm_head")),
        "reference": _beside_the_key(reference.input("reference")),
        "folder": Input("", path=str(Path(settings.endpoint.states_folder or "").absolute())),
    }
    knobs = {**endpoint.knobs(settings), "model": settings.endpoint.model or verifier.name}
    return [
        Node(
            STAGE,
            shard.name,
            chosen,
            {"ids": shard.ids, **inputs},
            entry="compute_shards",
            tokens=shard.tokens,
            output_bytes=shard.tokens * token_bytes,
            knobs=knobs,
        )
        for shard in shards
    ]


def _beside_the_key(source: Input | Pending) -> Input | Pending:
    return source if isinstance(source, Pending) else replace(source, digest="")


def compute_shards(jobs: Sequence[Job]) -> None:
    """Prove the engine's layers, then draw the states of one shard after the other; each is handed over by itself."""
    from kimi_adapters.config import read_config
    from kimi_adapters.engine_states import Shape, Source

    first = jobs[0]
    knobs, chosen = first.knobs, first.settings
    manners = {name: knobs[name] for name in ("timeout", "attempts", "backoff", "concurrency")}
    source = Source(knobs["url"], knobs["model"], first.input("folder"), endpoint.key(knobs["api_key_env"]), **manners)
    samples = [_samples(job) for job in jobs]
    prove(first, source, max(len(ids) for shard in samples for ids in shard))
    width = read_config(first.input("verifier")).hidden_size
    shape = Shape(len(chosen["layer_ids"]) + 1, width, chosen["compute_dtype"])
    for job, mine in zip(jobs, samples, strict=True):
        _one_shard(job, source, mine, shape)


def prove(job: Job, source: Any, longest: int) -> None:
    """``UserError`` where the engine is not the one named, or its states are not those asked for."""
    from kimi_adapters.engine_probe import examine, require_engine
    from kimi_adapters.layer_proof import REFERENCE, Prover, Reference
    from kimi_adapters.weights import Checkpoint

    chosen, reference = job.settings, Reference.read(job.input("reference") / REFERENCE)
    with endpoint.client(job.knobs, source.model) as client:
        require_engine(client, chosen["version"], max(longest, len(reference.token_ids)))
        prover = Prover(reference, Checkpoint(job.input("head")), chosen["layer_ids"], chosen["compute_dtype"])
        fault = prover.fault(examine(client, source, reference.token_ids.tolist(), prover))
    if fault:
        raise UserError(f"the endpoint {source.url} {fault}: start it as `eyas engine-command` says; no states were drawn")


def _samples(job: Job) -> list[list[int]]:
    ids, offsets = read_tokens(job.input("ids"))
    return [ids[start:stop].tolist() for start, stop in zip(offsets[:-1], offsets[1:], strict=True)]


def _one_shard(job: Job, source: Any, samples: list[list[int]], shape: Any) -> None:
    from kimi_adapters.engine_states import SampleFailed, draw, files_of, remove

    try:
        drawn = draw(source, samples, shape, lambda done: job.progress(done, len(samples), "samples"))
    except SampleFailed as error:
        raise UserError(f"{job.label}: {error}; see the engine's log, then run again: finished shards are kept") from None
    try:
        _require_most(job, drawn)
        _write(job, drawn, samples, shape.width)
    finally:
        remove(files_of(drawn))


def _require_most(job: Job, drawn: Sequence[Any]) -> None:
    """``UserError`` where too many samples of a shard cannot be used."""
    from kimi_adapters.engine_states import Unusable

    failed = [(number, one.reason) for number, one in enumerate(drawn) if isinstance(one, Unusable)]
    if len(failed) > job.knobs["max_errors"] * len(drawn):
        number, reason = failed[0]
        raise UserError(
            f"{job.label}: {len(failed)} of {len(drawn)} samples cannot be used, more than endpoint.max_errors allows; sample "
            f"{number} got no states from the engine in {job.knobs['attempts']} tries: {reason}; see its log"
        )


def _write(job: Job, drawn: Sequence[Any], samples: list[list[int]], width: int) -> None:
    """The shard's file, a state after the other, and its statistics. A sample that cannot be used has NaN for states, by which
    validation puts it aside; its reason is counted in the facts of the statistics."""
    import numpy as np
    import torch

    from kimi_adapters.engine_states import Unusable, state_of
    from tasks.arrays import write_arrays
    from tasks.state_sink import StateSink

    chosen, total = job.settings, sum(map(len, samples))
    dtype, names = getattr(torch, chosen["state_dtype"]), [*(f"layer.{k}" for k in chosen["layer_ids"]), "last"]
    states, aside = job.writer("hidden_states"), job.writer("state_stats")
    with states.open(STATES) as file:
        sink = StateSink([file], [np.cumsum([0, *map(len, samples)])], names, width, chosen["state_dtype"])
        for place, name in enumerate(names):
            for one, ids in zip(drawn, samples, strict=True):
                missing = isinstance(one, Unusable)
                sink(0, name, (torch.full((len(ids), width), torch.nan) if missing else state_of(one, place)).to(dtype))
        sink.close()
    stats, unusable = sink.stats[0], Counter(one.reason for one in drawn if isinstance(one, Unusable))
    with aside.open(STATS) as file:
        write_arrays(file, stats.arrays)
    sealed = {
        "states": states.seal(tokens=total, hidden_size=width, layer_ids=chosen["layer_ids"], dtype=chosen["state_dtype"]),
        "stats": aside.seal(
            tokens=total,
            samples=len(samples),
            not_finite=stats.not_finite,
            **({"unusable": dict(unusable)} if unusable else {}),
        ),
    }
    job.finish(sealed, tokens=total)
