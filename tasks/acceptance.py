"""Acceptance: what the verifier takes of the draft's proposals, by real decoding and by the WALK over held-out text."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from artifacts.manifest import canonical_json, digest_bytes
from artifacts.stage import Input, Made, Node, Stage
from errors import UserError
from running.job import Job
from tasks.formats import ACCEPTANCE, PLOT, START
from tasks.handles import Shard, Verifier
from tasks.prompts import read_prompts
from tasks.settings import Settings

STAGE = Stage("acceptance", module=__name__, libraries=("torch", "numpy", "tokenizers"), retries=1, device="accelerator")
GAP = 0.1  # replay and real decoding of the same prompts must agree within this acceptance length


def check(settings: Settings) -> None:
    """Refuse prompts that cannot be read, and a run that nothing would judge."""
    if settings.acceptance.prompts is not None:
        read_prompts(settings.acceptance.prompts)
    elif settings.corpus.held_out == 0:
        raise UserError(
            "acceptance.prompts is empty and corpus.held_out is 0, so nothing could judge the draft: set one of them"
        )


def has_held_out(masks: dict[str, Any]) -> bool:
    """Whether a shard's facts promise a held-out answer longer than one token, which a walk needs."""
    return bool(masks["held_out_supervised"] > masks["held_out_samples"])


def nodes(
    settings: Settings,
    shards: list[Shard],
    states: list[Made],
    checked: Made,
    draft: Made,
    verifier: Verifier,
    decodes: bool = True,
) -> list[Node]:
    """Real decoding where evaluation prompts are given and the verifier ``decodes`` here, and replay where conversations are
    held out (in a plan: may be)."""
    found = []
    if settings.acceptance.prompts is not None and decodes:
        found.append(_decoding_node(settings, settings.acceptance.prompts, draft, verifier))
    masks = [shard.masks.ref.facts if isinstance(shard.masks, Input) and shard.masks.ref else None for shard in shards]
    if settings.corpus.held_out > 0 and any(facts is None or has_held_out(facts) for facts in masks):
        found.append(_replay_node(settings, shards, states, checked, draft))
    return found


def _drafts(draft: Made) -> dict[str, Any]:
    return {"draft": draft.input("draft"), "start": draft.input("start")}


def _decoding_node(settings: Settings, path: str, draft: Made, verifier: Verifier) -> Node:
    chosen = settings.acceptance
    count = min(chosen.max_prompts, settings.limit or chosen.max_prompts)
    rows = read_prompts(path, count)
    return Node(
        STAGE,
        "real decoding",
        {
            "k": chosen.k,
            "max_new_tokens": chosen.max_new_tokens,
            "temperature": 0.0,
            "chat_format": verifier.chat_format,
        },
        {
            **_drafts(draft),
            "verifier": verifier.input("embed", "layer", "norm", "lm_head", "numbers", "tokenizer"),
            "prompts": Input(digest_bytes(canonical_json(rows)), path=str(Path(path).absolute())),
        },
        entry="compute_decoding",
        tokens=count * chosen.max_new_tokens,
        knobs={"count": count},
    )


def _replay_node(settings: Settings, shards: list[Shard], states: list[Made], checked: Made, draft: Made) -> Node:
    inputs = {**_drafts(draft), "quarantine": checked.input("quarantine")}
    for i, (shard, made) in enumerate(zip(shards, states, strict=True)):
        inputs |= {f"ids.{i}": shard.ids, f"masks.{i}": shard.masks, f"states.{i}": made.input("states")}
    tokens = sum(shard.tokens for shard in shards)
    return Node(STAGE, "replay", {"k": settings.acceptance.k}, inputs, entry="compute_replay", tokens=tokens)


def _runners(job: Job) -> tuple[Any, Any]:
    """The trained draft and the draft it began as."""
    from kimi_adapters.draft_runner import DraftRunner
    from kimi_adapters.tensor_file import TensorFile
    from kimi_adapters.torch_file import read_tensors

    with TensorFile(job.input("start") / START) as file:
        start = read_tensors(file)
    folder = job.input("draft")
    return DraftRunner.load(folder, job.device), DraftRunner.load(folder, job.device, replace=start)


def compute_decoding(job: Job) -> None:
    """Decode prompts plainly and with the draft, which must say the same, many at once; walk over each with both drafts.

    The untrained draft's acceptance is its walk's, on the same text and float32 states: decoding with it would take as long
    as plain decoding, and the walk equals decoding (a test, and the gap that is checked here).
    """
    import torch

    from kimi_adapters.chat import chat_format, prompt_ids, stop_ids
    from kimi_adapters.decoding import decode_all, side_by_side, tied
    from kimi_adapters.generation import generate
    from kimi_adapters.tokenizer import Tokenizer
    from kimi_adapters.verifier import Verifier as Model
    from kimi_adapters.walk import walk
    from kimi_adapters.weights import Checkpoint

    rows = read_prompts(str(job.input("prompts")), job.knobs["count"])
    if digest_bytes(canonical_json(rows)) != job.digests["prompts"]:
        raise UserError(f"{job.input('prompts')} changed while the run was going on: start the run again")
    k, longest = job.settings["k"], job.settings["max_new_tokens"]
    directory = job.input("verifier")
    tokenizer, form = Tokenizer(directory), chat_format(job.settings["chat_format"])
    stops = stop_ids(tokenizer, form)
    model = Model(Checkpoint(directory), device=job.device, dtype=torch.float32)
    trained, untrained = _runners(job)
    cases = []
    asked = [prompt_ids(row["messages"], tokenizer, form) for row in rows]
    for run in side_by_side(asked, longest):
        batch, prompts, before = rows[run], asked[run], 2 * run.start
        plain = generate(model, prompts, longest, stops, batch_size=len(prompts), progress=_told(job, before, 2 * len(rows)))
        half = _told(job, before + len(batch), 2 * len(rows))
        drafted = decode_all(model, trained, prompts, k, longest, stops, progress=half)
        for row, prompt, answer, result in zip(batch, prompts, plain, drafted, strict=True):
            if answer != result.output and not tied(model, prompt, answer, result.output):
                raise RuntimeError(f"speculative decoding of prompt {row['id']} does not give what plain decoding gives")
            tokens = [*prompt, *result.output]
            whole = model.forward(torch.tensor([tokens]), model.new_cache(1, len(tokens)), trained.shape.layer_ids)
            mask = [False] * len(prompt) + [True] * len(result.output)
            replayed, blind = (walk(draft, tokens, mask, whole.aux[0], k) for draft in (trained, untrained))
            cases.append({"id": row["id"], "drafted": result.acceptance, "blind": blind, "replayed": replayed})
    facts = _facts("real decoding", k, [c["drafted"] for c in cases], [c["blind"] for c in cases])
    replayed = _total([case["replayed"] for case in cases], k)
    facts |= {"lossless": len(cases), "replay_length": round(replayed.length, 4)}
    if abs(facts["replay_length"] - facts["length"]) > GAP:
        raise RuntimeError(f"replay gives {facts['replay_length']} and decoding {facts['length']} on the same prompts")
    _finish(job, facts, [{"id": c["id"], "steps": c["drafted"].steps, "tokens": c["drafted"].tokens} for c in cases])


def _told(job: Job, before: int, total: int) -> Callable[[int, int], None]:
    """Tells the answers done so far, plain ones and drafted ones counted alike."""
    return lambda done, _: job.progress(before + done, total, "answers")


def compute_replay(job: Job) -> None:
    """Walk over the held-out samples of all shards with the draft and with an untrained one; what validation put aside or
    dropped is left out."""
    from kimi_adapters.replay import walk_shards
    from tasks.shard_files import left_out, shard_files

    k = job.settings["k"]
    shards, aside = shard_files(job), left_out(job)
    trained, untrained = _runners(job)
    cases = []
    for number, files in enumerate(shards):
        out = {0: aside.get(number, ())}
        walked = zip(walk_shards(trained, [files], k, out), walk_shards(untrained, [files], k, out), strict=True)
        cases += [(number, sample, drafted, blind) for (_, sample, drafted), (_, _, blind) in walked]
        job.progress(number + 1, len(shards), "shards")
    facts = _facts("replay", k, [case[2] for case in cases], [case[3] for case in cases])
    _finish(job, facts, [{"shard": c[0], "sample": c[1], "steps": c[2].steps, "tokens": c[2].tokens} for c in cases])


def _total(results: list[Any], k: int) -> Any:
    from kimi_adapters.acceptance_length import total

    return total(results, k)


def _facts(method: str, k: int, drafted: list[Any], blind: list[Any]) -> dict[str, Any]:
    from kimi_adapters.acceptance_interval import interval

    mine, base = _total(drafted, k), _total(blind, k)
    if mine.steps == 0:
        raise UserError(f"acceptance by {method} found no held-out answer longer than one token: hold out more conversations")
    low, high = interval(drafted)
    return {
        "method": method,
        "k": k,
        "length": round(mine.length, 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "per_position": [round(rate, 4) for rate in mine.rates],
        "untrained_length": round(base.length, 4),
        "untrained_per_position": [round(rate, 4) for rate in base.rates],
        "prompts": len(drafted),
        "tokens": mine.tokens,
        "steps": mine.steps,
    }


def _finish(job: Job, facts: dict[str, Any], cases: list[dict[str, Any]]) -> None:
    from tasks.plots import acceptance_plot

    writer = job.writer("acceptance")
    writer.write(ACCEPTANCE, json.dumps({**facts, "cases": cases}, indent=1).encode())
    writer.write(PLOT, acceptance_plot(facts))
    job.finish({"acceptance": writer.seal(**facts)}, tokens=facts["tokens"])
