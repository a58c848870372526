"""Hidden states: the verifier's auxiliary states and the state that enters its final norm, a node a token shard."""

from collections.abc import Sequence
from typing import Any

from artifacts.stage import Node, Stage
from running.job import Job
from tasks.formats import STATES, STATS, read_tokens
from tasks.handles import Shard, Verifier
from tasks.settings import Settings

STAGE = Stage(
    "hidden_states",
    module=__name__,
    libraries=("torch",),
    optional=("triton",),  # the kernels of NVIDIA GPUs; a CPU's torch comes without
    device="accelerator",
    gathers=True,
)
_STATE_BYTES = {"bfloat16": 2, "float32": 4}


def layer_ids(settings: Settings, verifier: Verifier) -> list[int]:
    """The auxiliary layers: as set, else the field's default for the verifier's depth. ``[]`` while that is unknown."""
    from kimi_adapters.layer_ids import check_layer_ids, default_layer_ids

    if verifier.facts is None:
        return settings.hidden_states.layer_ids or []
    count = verifier.facts["num_layers"]
    chosen = settings.hidden_states.layer_ids or default_layer_ids(count)
    check_layer_ids(chosen, count)
    return list(chosen)


def token_bytes(settings: Settings, verifier: Verifier) -> int:
    """Bytes stored a token: (auxiliary layers + 1) states of ``hidden_size``; 57,344 for K2.5 in BF16."""
    if verifier.facts is None:
        return 0
    states = len(layer_ids(settings, verifier)) + 1
    return int(states * verifier.facts["hidden_size"] * _STATE_BYTES[settings.hidden_states.state_dtype])


def nodes(settings: Settings, shards: list[Shard], verifier: Verifier) -> list[Node]:
    """A node a shard; reads token ids alone, so that masks, sides and other shards are not in its key."""
    chosen = {
        "layer_ids": layer_ids(settings, verifier),
        "state_dtype": settings.hidden_states.state_dtype,
        "compute_dtype": settings.hidden_states.compute_dtype,
    }
    source = verifier.input("embed", "layer", "numbers")
    each = token_bytes(settings, verifier)
    return [
        Node(
            STAGE,
            shard.name,
            chosen,
            {"ids": shard.ids, "verifier": source},
            entry="compute_passes",
            tokens=shard.tokens,
            output_bytes=shard.tokens * each,
            knobs={"shards_per_pass": settings.running.shards_per_pass},
        )
        for shard in shards
    ]


def compute_passes(jobs: Sequence[Job]) -> None:
    """Take the shards of one lease through the layers, ``shards_per_pass`` at a time; each is handed over by itself."""
    import torch

    from kimi_adapters.layer_stream import LayerCache
    from kimi_adapters.transport import transport_for
    from kimi_adapters.weights import Checkpoint

    first = jobs[0]
    if first.device == "cpu":
        torch.set_num_threads(1)  # sums in an order that the number of cores does not change; more cores take more shards
    checkpoint = Checkpoint(first.input("verifier"))
    dtype = getattr(torch, first.settings["compute_dtype"])
    size = first.knobs["shards_per_pass"] or 1
    resident, weights = LayerCache(), checkpoint.layer_bytes
    with transport_for(checkpoint, torch.device(first.device)) as transport:
        try:
            for start in range(0, len(jobs), size):
                if first.pace:
                    first.pace.begin(checkpoint.config.num_layers, weights)
                _one_pass(jobs[start : start + size], checkpoint, dtype, resident, transport, weights)
        finally:
            if first.pace:
                first.pace.leave()
        transport.finish()


def _one_pass(jobs: Sequence[Job], checkpoint: Any, dtype: Any, resident: Any, transport: Any, weights: int) -> None:
    """On a GPU the states of a pass are written, and its jobs finished, while the next pass computes.

    ``weights`` are the bytes of all layers. The records get the figures of the pass: its ``tokens``, its ``seconds`` without
    those spent on ``waiting`` for weights, the ``bytes`` of weights that were read and the seconds of ``reading``.
    """
    import time

    import torch

    from kimi_adapters.layer_stream import ShardTokens, stream_states
    from kimi_adapters.reading import Reading
    from tasks.state_sink import StateSink

    chosen = jobs[0].settings
    names = [*(f"layer.{k}" for k in chosen["layer_ids"]), "last"]
    tokens = [read_tokens(job.input("ids")) for job in jobs]
    artifacts = [job.writer("hidden_states") for job in jobs]
    files = [artifact.open(STATES) for artifact in artifacts]
    offsets = [bounds for _, bounds in tokens]
    sink = StateSink(files, offsets, names, checkpoint.config.hidden_size, chosen["state_dtype"])

    def progress(done: int, total: int) -> None:
        for job in jobs:
            job.progress(done, total, "layers")

    reading = Reading(jobs[0].pace, transport.read_clock)
    began, waited = time.monotonic(), transport.waited()
    stream_states(
        [ShardTokens(torch.from_numpy(ids.copy()), torch.from_numpy(bounds.copy())) for ids, bounds in tokens],
        checkpoint,
        chosen["layer_ids"],
        sink,
        device=jobs[0].device,
        compute_dtype=dtype,
        state_dtype=getattr(torch, chosen["state_dtype"]),
        resident=resident,
        progress=progress,
        transport=transport,
        reading=reading,
    )
    waiting = transport.waited() - waited
    measured = {
        "tokens": sum(len(ids) for ids, _ in tokens),
        "seconds": round(time.monotonic() - began - waiting, 3),
        "waiting": round(waiting, 3),
        "bytes": weights * reading.layers // checkpoint.config.num_layers,
        "reading": round(reading.seconds, 3),
    }

    def finish() -> None:
        sink.close()
        for job, artifact, stats, bounds in zip(jobs, artifacts, sink.stats, offsets, strict=True):
            _finish(job, artifact, stats, bounds, measured, checkpoint.config.hidden_size)

    transport.then(finish)


def _finish(job: Job, artifact: Any, stats: Any, offsets: Any, measured: dict[str, float], hidden: int) -> None:
    """Seals the states of a shard and their statistics, and hands them over."""
    from tasks.arrays import write_arrays

    chosen, total = job.settings, int(offsets[-1])
    states = artifact.seal(tokens=total, hidden_size=hidden, layer_ids=chosen["layer_ids"], dtype=chosen["state_dtype"])
    aside = job.writer("state_stats")
    with aside.open(STATS) as file:
        write_arrays(file, stats.arrays)
    sealed = aside.seal(tokens=total, samples=len(offsets) - 1, not_finite=stats.not_finite)
    job.finish({"states": states, "stats": sealed}, total, measured)
