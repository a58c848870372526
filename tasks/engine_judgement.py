"""What is measured in an engine that has the draft, and in one that has none, and how the two compare."""

from collections.abc import Sequence
from typing import Any

from errors import UserError
from kimi_adapters.chat import chat_format, prompt_ids
from kimi_adapters.engine_client import EngineClient
from kimi_adapters.tokenizer import Tokenizer
from running.job import Job
from tasks.engine_runs import EngineRun, answer_all, degenerate

Rows = list[dict[str, Any]]


def with_draft(job: Job, client: EngineClient, rows: Rows) -> tuple[dict[str, Any], list[dict[str, Any]], EngineRun]:
    """Facts, a case for each prompt, and the greedy run."""
    chosen = job.settings
    answer_all(client, rows[:1], temperature=0.0, max_new_tokens=chosen["max_new_tokens"])  # warm, and not measured
    greedy = _run(job, client, rows, 0.0)
    _require_draft(client, greedy, chosen["k"])
    looping = degenerate(greedy, chosen["max_repetition"], chosen["max_loop"])
    facts: dict[str, Any] = {
        "engine": f"vLLM {chosen['version']}",
        "k": chosen["k"],
        "concurrency": chosen["concurrency"],
        "prompts": len(rows),
        "tokens": greedy.tokens,
        **_accepted(greedy),
        "warm": {},
    }
    if looping is not None:  # so there are token ids
        facts |= {"prompts_as_ours": _as_ours(job, rows, greedy), "degenerate": sum(looping)}
    loops: Sequence[bool | None] = [None] * len(rows) if looping is None else looping
    sound = [row for row, one in zip(rows, loops, strict=True) if not one]
    if sound and len(sound) < len(rows):
        facts["sound_length"] = _accepted(_run(job, client, sound, 0.0))["length"]
    for temperature in chosen["temperatures"]:
        facts["warm"][f"{temperature:g}"] = _accepted(_run(job, client, rows, temperature))
    told = zip(rows, greedy.answers, loops, strict=True)
    cases = [{"id": row["id"], "tokens": answer.tokens, "degenerate": one} for row, answer, one in told]
    return facts, cases, greedy


def without_draft(job: Job, client: EngineClient, rows: Rows, drafted: EngineRun) -> tuple[dict[str, Any], list[bool]]:
    """Speed, and how many answers equal the drafted ones; the same of a repeat, which says what the engine can promise."""
    answer_all(client, rows[:1], temperature=0.0, max_new_tokens=job.settings["max_new_tokens"])
    plain = _run(job, client, rows, 0.0)
    if plain.counters.speculates:
        raise UserError(f"the engine at {client.url} has a draft, too: endpoint.plain_url is to be one without")
    repeated = plain.equal(_run(job, client, rows, 0.0))
    equal = drafted.equal(plain)
    return {"plain_tokens_per_s": plain.speed, "equal": sum(equal), "repeats_equal": sum(repeated)}, equal


def _run(job: Job, client: EngineClient, rows: Rows, temperature: float) -> EngineRun:
    run = answer_all(client, rows, temperature=temperature, max_new_tokens=job.settings["max_new_tokens"])
    job.progress(len(rows), len(rows), "prompts", f"temperature {temperature:g}, {run.speed} tokens/s")
    return run


def _require_draft(client: EngineClient, run: EngineRun, k: int) -> None:
    counted = run.counters
    if not counted.speculates or not counted.drafts:
        raise UserError(f"the engine at {client.url} drafted nothing: start it with the exported draft (see its README.md)")
    drafted = len(counted.by_position)
    if drafted != k:
        raise UserError(f"the engine at {client.url} drafts {drafted} tokens a step and acceptance.k is {k}: make them equal")


def _accepted(run: EngineRun) -> dict[str, Any]:
    accepted = run.counters.acceptance()
    return {
        "length": round(accepted.length, 4),
        "per_position": [round(rate, 4) for rate in accepted.rates],
        "steps": accepted.steps,
        "tokens_per_s": run.speed,
    }


def _as_ours(job: Job, rows: Rows, run: EngineRun) -> int:
    """How many prompts the engine's template writes as the chat format here does, token for token."""
    tokenizer, form = Tokenizer(job.input("verifier")), chat_format(job.settings["chat_format"])
    pairs = zip(rows, run.answers, strict=True)
    return sum(answer.prompt_ids == prompt_ids(row["messages"], tokenizer, form) for row, answer in pairs)
