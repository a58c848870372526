"""Acceptance in a serving engine: held-out prompts through vLLM's chat route, with the exported draft and without one."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from artifacts.manifest import canonical_json, digest_bytes
from artifacts.stage import Input, Made, Node, Pending, Stage
from errors import UserError
from running.job import Job
from tasks import endpoint
from tasks.engine_version import engine_command, engine_version
from tasks.formats import ACCEPTANCE
from tasks.handles import Verifier
from tasks.prompts import read_prompts
from tasks.settings import Settings

STAGE = Stage(
    "engine_acceptance",
    module=__name__,
    libraries=("tokenizers", "numpy"),
    reproducible=False,
    retries=1,
    device="accelerator",
)
_NOT_COMPARED = (
    "acceptance.engine is endpoint and endpoint.plain_url is empty, so that greedy text and speed are not compared with those "
    "without the draft: give the address of an engine that has none"
)


def check(settings: Settings) -> list[str]:
    """Refuse an engine that could not judge; sentences about what it leaves open."""
    how = settings.acceptance.engine
    if how == "none":
        return []
    if "vllm" not in settings.export.engines:
        raise UserError("acceptance.engine has vLLM serve the draft, and export.engines leaves vllm out: add it")
    if settings.acceptance.prompts is None:
        raise UserError("acceptance.engine sends acceptance.prompts to an engine, and it is empty: give a file of prompts")
    if how == "endpoint":
        endpoint.check(settings, "acceptance.engine")
        return [] if settings.endpoint.plain_url else [_NOT_COMPARED]
    engine_command(settings.engine)
    engine_version(settings, "")
    return []


def nodes(settings: Settings, exports: list[Made], verifier: Verifier) -> list[Node]:
    """The one node, where an engine is named, for the export that vLLM loads. Its version is asked for once that is known."""
    if settings.acceptance.engine == "none":
        return []
    exported = next(one for one in exports if one.node.settings["engine"] == "vllm")
    compared = settings.acceptance.engine == "start" or settings.endpoint.plain_url is not None
    return [_node(settings, verifier, "vLLM", exported.input("export"), bool(exported.outputs), compared)]


def rivals(settings: Settings, drafts: Sequence[tuple[str, Input]], verifier: Verifier) -> list[Node]:
    """A node for each of other people's drafts, with which engines are started, too."""
    if settings.acceptance.engine != "start":
        return []
    return [_node(settings, verifier, name, draft, known=True, compared=False) for name, draft in drafts]


def _node(settings: Settings, verifier: Verifier, name: str, draft: Input | Pending, known: bool, compared: bool) -> Node:
    """``known``: whether the draft is there; ``compared``: whether the prompts are answered without one, too."""
    chosen = settings.acceptance
    assert chosen.prompts is not None
    count = min(chosen.max_prompts, settings.limit or chosen.max_prompts)
    rows = read_prompts(chosen.prompts, count)
    started = chosen.engine == "start"
    model = settings.endpoint.model or verifier.name
    roles = ("embed", "layer", "norm", "lm_head", "numbers", "tokenizer") if started else ("tokenizer",)
    own = {
        "model": model,
        "version": engine_version(settings, model) if known else "",
        "arguments": settings.engine.arguments if started else [],
        "plain": compared,
        "k": chosen.k,
        "max_new_tokens": chosen.max_new_tokens,
        "temperatures": chosen.temperatures,
        "concurrency": chosen.concurrency,
        "chat_format": verifier.chat_format,
        "max_repetition": settings.validation.max_repetition,
        "max_loop": settings.validation.max_loop,
    }
    inputs = {
        "export": draft,
        "verifier": verifier.input(*roles),
        "prompts": Input(digest_bytes(canonical_json(rows)), path=str(Path(chosen.prompts).absolute())),
    }
    knobs = {
        "count": count,
        "endpoint": {**endpoint.knobs(settings), "concurrency": chosen.concurrency},
        "command": engine_command(settings.engine) if started else None,
        "environment": settings.engine.environment,
        "start_timeout": settings.engine.start_timeout,
    }
    return Node(STAGE, name, own, inputs, tokens=3 * count * chosen.max_new_tokens, knobs=knobs)


def compute(job: Job) -> None:
    """Answer the prompts greedily and at each temperature with the draft, greedily and again without it; output: what the
    engine counted, how fast it was, which answers differ."""
    from tasks.engine_judgement import with_draft, without_draft

    rows = read_prompts(str(job.input("prompts")), job.knobs["count"])
    if digest_bytes(canonical_json(rows)) != job.digests["prompts"]:
        raise UserError(f"{job.input('prompts')} changed while the run was going on: start the run again")
    with _engine(job, drafts=True) as client:
        facts, cases, greedy = with_draft(job, client, rows)
    if job.settings["plain"]:
        with _engine(job, drafts=False) as client:
            compared, equal = without_draft(job, client, rows, greedy)
        facts |= compared
        cases = [{**case, "equal": same} for case, same in zip(cases, equal, strict=True)]
    writer = job.writer("engine_acceptance")
    writer.write(ACCEPTANCE, json.dumps({**facts, "cases": cases}, indent=1).encode())
    job.finish({"engine_acceptance": writer.seal(**facts)}, tokens=facts["tokens"])


@contextmanager
def _engine(job: Job, drafts: bool) -> Iterator[Any]:
    """A client of an engine with the draft or without one: started here and ended here, or running elsewhere."""
    from kimi_adapters.engine_server import serving

    told, model = job.knobs["endpoint"], job.settings["model"]
    if job.knobs["command"] is None:
        with endpoint.client(told, model, told["url"] if drafts else told["plain_url"]) as client:
            client.require_model()
            yield client
        return
    command = [*job.knobs["command"], "serve", str(job.input("verifier")), "--served-model-name", model]
    command += ["--generation-config", "vllm", *job.settings["arguments"]]  # no sampling defaults of the checkpoint's
    if drafts:
        draft = {"method": "eagle3", "model": str(job.input("export")), "num_speculative_tokens": job.settings["k"]}
        command += ["--speculative-config", json.dumps(draft)]
    log = job.scratch / ("engine.log" if drafts else "engine_plain.log")
    deadline = job.knobs["start_timeout"]

    def told_of(seconds: float) -> None:
        job.progress(seconds, deadline, "s", "the engine starts")

    with (
        serving(command, log, environment=job.knobs["environment"], deadline=deadline, progress=told_of) as url,
        endpoint.client({**told, "api_key_env": None}, model, url) as client,
    ):
        yield client
