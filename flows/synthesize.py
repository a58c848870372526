"""Synthesis by itself: prompts -> answers by the verifier -> files of conversations in a folder that retraining reads."""

import os
import shutil
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from artifacts.disk import sync_folder, telling_full
from artifacts.manifest import Ref
from artifacts.store import Store
from errors import UserError
from flows.train_draft import answer_nodes, obtain_verifier
from running.walk import Executor
from tasks import endpoint_synthesis, verifier
from tasks.formats import CONVERSATIONS
from tasks.settings import Settings


@dataclass
class Landed:
    """What lies in ``folder`` now: ``count`` conversations, and the names of the files that were not there before."""

    folder: Path
    count: int = 0
    files: list[str] = field(default_factory=list)


def check(settings: Settings) -> None:
    """Refuse settings without prompts, or whose verifier is none or two."""
    verifier.check(settings.verifier)
    if not settings.data.prompts:
        raise UserError("data.prompts is empty, so there is nothing to answer: give at least one file of prompts")
    if settings.synthesis.source == "endpoint":
        endpoint_synthesis.check(settings)


def synthesize(settings: Settings, run: Executor, memo: Any, store: Store, into: Path) -> Landed:
    """Answer the prompts of ``data.prompts`` and land the answers in ``into``; what is answered already is not again."""
    check(settings)
    target = obtain_verifier(settings, run, memo)
    verifier.check_decodes(settings, target)
    answered = run.map(answer_nodes(settings, target))
    for made in answered:
        run.require(made)
    landed = Landed(into.absolute())
    for path, made in zip(_stems(answered), answered, strict=True):
        assert made.outputs is not None
        ref = made.outputs["conversations"]
        landed.count += ref.facts["conversations"]
        if land(store, ref, landed.folder / f"{path}-{ref.digest[:12]}.jsonl"):
            landed.files.append(f"{path}-{ref.digest[:12]}.jsonl")
    return landed


def _stems(answered: list[Any]) -> list[str]:
    return [made.node.name.partition(", chunk ")[0] for made in answered]


def land(store: Store, ref: Ref, path: Path) -> bool:
    """Copy conversations to a file that is named by their content, under a hidden name first; False where it is there."""
    if path.exists():
        return False
    with telling_full(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            with open(store.open(ref.digest) / CONVERSATIONS, "rb") as source, open(temporary, "wb") as target:
                shutil.copyfileobj(source, target)
                target.flush()
                os.fsync(target.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)
    return True
