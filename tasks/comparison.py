"""Comparison: published drafts judged as ours is, on the same prompts or held-out samples; a node a directory.

A draft's judgement does not depend on ours, so a retraining finds it made.
"""

import json
from pathlib import Path
from typing import Any

from artifacts.manifest import canonical_json, digest_bytes
from artifacts.stage import Input, Node, Stage
from errors import UserError
from running.job import Job
from tasks.formats import ACCEPTANCE
from tasks.handles import Verifier
from tasks.prompts import read_prompts
from tasks.settings import Settings

STAGE = Stage("comparison", module=__name__, libraries=("torch", "numpy", "tokenizers"), retries=1, device="accelerator")
_LAYERS = ("llama", "qwen3")  # those that kimi_adapters.draft_layers computes
_OURS = ("draft", "start")  # inputs of acceptance that are of our draft


def check(settings: Settings, verifier: Verifier, layer_ids: list[int], decodes: bool) -> list[str]:
    """Refuse a directory that could not be judged: no draft of this verifier, one that does not run here or, where the verifier
    does not decode, one of other auxiliary layers than are stored.

    Where an engine is started, a draft that only we cannot run is judged there alone: sentences that say so.
    """
    told = []
    for directory in settings.acceptance.compare:
        _check_draft(Path(directory), _sizes(verifier))
        reason = _not_here(Path(directory), _sizes(verifier), [] if decodes else layer_ids)
        if reason and settings.acceptance.engine != "start":
            raise UserError(reason)
        told += [f"{reason.rstrip('.')}; it is judged in the engine alone"] if reason else []
    return told


def _check_draft(folder: Path, sizes: Any) -> None:
    """Refuse what no engine serves with this verifier."""
    from kimi_adapters.published_config import published_files, read_published_config

    published_files(folder)
    try:
        read_published_config(folder)
    except UserError:
        if _is_object(folder / "config.json"):
            return  # of a kind that is not read here
        raise
    read_published_config(folder, sizes)


def _is_object(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_text(encoding="utf-8")), dict)
    except (OSError, ValueError):
        return False


def _not_here(folder: Path, sizes: Any, stored: list[int]) -> str:
    """Why our own runner does not judge a draft; empty where it does. ``stored``: the auxiliary layers that it must do with."""
    from kimi_adapters.published_config import read_published_config
    from kimi_adapters.rope_parameters import ROPE_TYPES

    try:
        config = read_published_config(folder, sizes)
    except UserError as error:
        return str(error)
    layer, ids = config["transformer_layer_config"], config["eagle_aux_hidden_state_layer_ids"]
    kind, rope = layer["model_type"], layer["rope_parameters"]["rope_type"]
    if kind not in _LAYERS or rope not in ROPE_TYPES:
        return f"acceptance.compare has {folder}, of {kind} layers with the rope {rope}, which does not run here"
    if stored and not set(ids) <= set(stored):
        return (
            f"acceptance.compare has {folder}, which reads the layers {ids}, and hidden states are of {stored}: set "
            "hidden_states.layer_ids to ids with its own among them, or leave it out"
        )
    return ""


def _sizes(verifier: Verifier) -> Any:
    from kimi_adapters.published_config import VerifierSizes

    names = ("family", "num_layers", "hidden_size", "vocab_size")
    return VerifierSizes(*(verifier.facts[name] for name in names)) if verifier.facts else None


def nodes(settings: Settings, judging: list[Node], verifier: Verifier, layer_ids: list[int], memo: Any) -> list[Node]:
    """A node a directory that we can run: the first of our own draft's judgements, the published draft in its place."""
    if not settings.acceptance.compare or not judging:
        return []
    ours = judging[0]
    shared = {name: source for name, source in ours.inputs.items() if name not in _OURS}
    shared.setdefault("verifier", verifier.input("embed", "lm_head", "numbers"))
    stored = [] if ours.entry == "compute_decoding" else layer_ids
    return [
        Node(STAGE, name, ours.settings, {"draft": draft, **shared}, entry=ours.entry, tokens=ours.tokens, knobs=ours.knobs)
        for name, draft in drafts(settings, memo)
        if not _not_here(Path(draft.path or ""), _sizes(verifier), stored)
    ]


def drafts(settings: Settings, memo: Any) -> list[tuple[str, Input]]:
    """The directories of ``acceptance.compare`` by name, each with the digest of what is read of it."""
    from kimi_adapters.published_config import published_files

    found = []
    for folder in (Path(directory).absolute() for directory in settings.acceptance.compare):
        files = published_files(folder)
        content = dict(zip((path.name for path in files), memo.digests(files), strict=True))
        found.append((folder.name, Input(digest_bytes(canonical_json(content)), path=str(folder))))
    return found


def _runner(job: Job) -> Any:
    """The published draft, with the verifier's embeddings and head where it comes without."""
    import torch

    from kimi_adapters.config import read_config
    from kimi_adapters.draft_runner import DraftRunner
    from kimi_adapters.published_draft import FROM_VERIFIER, read_published
    from kimi_adapters.weights import Checkpoint

    directory = job.input("verifier")
    draft = read_published(job.input("draft"), read_config(directory))
    missing = [name for name in FROM_VERIFIER if name not in draft.tensors]
    if missing:
        checkpoint = Checkpoint(directory)
        own = {"embed_tokens.weight": checkpoint.embed, "lm_head.weight": checkpoint.lm_head}
        draft.tensors.update({name: own[name](torch.float32) for name in missing})
    return DraftRunner(draft.config, draft.tensors, job.device)


def compute_decoding(job: Job) -> None:
    """Decode each prompt with the draft."""
    import torch

    from kimi_adapters.chat import chat_format, prompt_ids, stop_ids
    from kimi_adapters.decoding import decode_all, side_by_side
    from kimi_adapters.tokenizer import Tokenizer
    from kimi_adapters.verifier import Verifier as Model
    from kimi_adapters.weights import Checkpoint

    rows = read_prompts(str(job.input("prompts")), job.knobs["count"])
    if digest_bytes(canonical_json(rows)) != job.digests["prompts"]:
        raise UserError(f"{job.input('prompts')} changed while the run was going on: start the run again")
    tokenizer, form = Tokenizer(job.input("verifier")), chat_format(job.settings["chat_format"])
    model, draft = Model(Checkpoint(job.input("verifier")), device=job.device, dtype=torch.float32), _runner(job)
    k, longest, stops = job.settings["k"], job.settings["max_new_tokens"], stop_ids(tokenizer, form)
    cases = []
    prompts = [prompt_ids(row["messages"], tokenizer, form) for row in rows]
    for run in side_by_side(prompts, longest):
        results = decode_all(model, draft, prompts[run], k, longest, stops)
        cases += [({"id": row["id"]}, result.acceptance) for row, result in zip(rows[run], results, strict=True)]
        job.progress(run.stop, len(rows), "prompts")
    _finish(job, "real decoding", cases)


def compute_replay(job: Job) -> None:
    """Walk over the held-out samples of all shards with the draft."""
    from kimi_adapters.replay import walk_shards
    from tasks.shard_files import left_out, shard_files

    shards, aside, draft = shard_files(job), left_out(job), _runner(job)
    cases = []
    for number, files in enumerate(shards):
        walked = walk_shards(draft, [files], job.settings["k"], {0: aside.get(number, ())})
        cases += [({"shard": number, "sample": sample}, found) for _, sample, found in walked]
        job.progress(number + 1, len(shards), "shards")
    _finish(job, "replay", cases)


def _finish(job: Job, method: str, cases: list[tuple[dict[str, Any], Any]]) -> None:
    from kimi_adapters.acceptance_interval import interval
    from kimi_adapters.acceptance_length import total

    results, k = [found for _, found in cases], job.settings["k"]
    whole, (low, high) = total(results, k), interval(results)
    facts = {
        "method": method,
        "k": k,
        "length": round(whole.length, 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "per_position": [round(rate, 4) for rate in whole.rates],
        "prompts": len(results),
        "tokens": whole.tokens,
        "steps": whole.steps,
    }
    rows = [{**place, "steps": found.steps, "tokens": found.tokens} for place, found in cases]
    writer = job.writer("acceptance")
    writer.write(ACCEPTANCE, json.dumps({**facts, "cases": rows}, indent=1).encode())
    job.finish({"acceptance": writer.seal(**facts)}, tokens=whole.tokens)
