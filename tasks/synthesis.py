"""Synthesis: the verifier answers prompts. Token ids are kept as they were drawn and never made again from text."""

import json
from pathlib import Path
from typing import Any

from artifacts.manifest import canonical_json, digest_bytes
from artifacts.stage import Input, Node, Stage
from errors import UserError
from running.job import Job
from tasks.formats import CONVERSATIONS
from tasks.handles import Verifier
from tasks.prompts import read_prompts
from tasks.settings import Settings

STAGE = Stage(
    "synthesis", module=__name__, libraries=("torch", "tokenizers"), reproducible=False, retries=1, device="accelerator"
)


def nodes(settings: Settings, verifier: Verifier) -> list[Node]:
    """A node for each chunk of each prompts file; a chunk's key holds its own rows, not its file."""
    size = settings.synthesis.prompts_per_task
    found = []
    for path in settings.data.prompts:
        rows = read_prompts(path, settings.limit)
        chunks = [rows[start : start + size] for start in range(0, len(rows), size)]
        for number, chunk in enumerate(chunks):
            name = f"{Path(path).stem}, chunk {number + 1}/{len(chunks)}"
            found.append(_node(settings, verifier, name, path, number * size, chunk))
    return found


def _node(settings: Settings, verifier: Verifier, name: str, path: str, start: int, chunk: list[dict[str, Any]]) -> Node:
    chosen = settings.synthesis
    return Node(
        STAGE,
        name,
        {
            "max_new_tokens": chosen.max_new_tokens,
            "temperature": chosen.temperature,
            "seed": chosen.seed,
            "chat_format": verifier.chat_format,
        },
        {
            "prompts": Input(digest_bytes(canonical_json(chunk)), path=str(Path(path).absolute())),
            "verifier": verifier.input("embed", "layer", "norm", "lm_head", "numbers", "tokenizer"),
        },
        tokens=len(chunk) * chosen.max_new_tokens,
        knobs={"start": start, "stop": start + len(chunk), "batch": settings.running.generation_batch},
    )


def compute(job: Job) -> None:
    """Answer one chunk; output: conversations with their token ids."""
    import torch

    from kimi_adapters.chat import chat_format, prompt_ids, stop_ids
    from kimi_adapters.generation import generate
    from kimi_adapters.tokenizer import Tokenizer
    from kimi_adapters.verifier import Verifier as Model
    from kimi_adapters.weights import Checkpoint

    rows = read_prompts(str(job.input("prompts")))[job.knobs["start"] : job.knobs["stop"]]
    if digest_bytes(canonical_json(rows)) != job.digests["prompts"]:
        raise UserError(f"{job.input('prompts')} changed while the run was going on: start the run again")
    directory = job.input("verifier")
    tokenizer, form = Tokenizer(directory), chat_format(job.settings["chat_format"])
    dtype = torch.bfloat16 if job.device == "cuda" else torch.float32
    model = Model(Checkpoint(directory), device=job.device, dtype=dtype)
    prompts = [prompt_ids(row["messages"], tokenizer, form) for row in rows]
    answers = generate(
        model,
        prompts,
        max_new_tokens=job.settings["max_new_tokens"],
        stop_ids=stop_ids(tokenizer, form),
        temperature=job.settings["temperature"],
        seed=int.from_bytes(bytes.fromhex(job.digests["prompts"][:12])) + job.settings["seed"],
        batch_size=job.knobs["batch"],
        progress=lambda done, total: job.progress(done, total, "prompts"),
    )
    writer = job.writer("conversations")
    with writer.open(CONVERSATIONS) as file:
        for row, prompt, answer in zip(rows, prompts, answers, strict=True):
            said = {"role": "assistant", "content": tokenizer.decode(answer)}
            line = {"id": row["id"], "messages": [*row["messages"], said], "prompt_ids": prompt, "answer_ids": answer}
            line["greedy"] = job.settings["temperature"] == 0
            file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
    tokens = sum(map(len, answers))
    job.finish({"conversations": writer.seal(conversations=len(rows), tokens=tokens)}, tokens=tokens)
