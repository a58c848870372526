"""Synthesis by itself: prompts -> answers by the verifier -> files of conversations in a folder that retraining reads."""

import os
import shutil
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from artifacts.disk import sync_folder, telling_full, write_atomically
from artifacts.manifest import Ref, digest_bytes
from artifacts.stage import Made
from artifacts.store import Store
from errors import UserError
from flows.train_draft import answer_nodes, obtain_verifier
from running.host import Host
from running.plan import PlanExecutor
from running.walk import Executor, Walk
from tasks import endpoint_synthesis, verifier
from tasks.formats import CONVERSATIONS
from tasks.settings import Settings


@dataclass
class Landed:
    """What lies in ``folder`` now: ``count`` conversations, and the names of the files that nobody has been told of."""

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


def plan_answers(settings: Settings, host: Host, code: Path | None = None) -> Walk:
    """Walk what a synthesis would do, with the code of ``code`` (else of the checkout); nothing is run."""
    walk = host.walk(code)
    _answers(settings, PlanExecutor(walk), host.memo)
    return walk


def synthesize(settings: Settings, run: Executor, host: Host, into: Path) -> Landed:
    """Answer the prompts of ``data.prompts`` and land the answers in ``into``; what is answered already is not again."""
    answered = _answers(settings, run, host.memo)
    landed = Landed(into.absolute())
    for stem, made in zip(_stems(answered), answered, strict=True):
        assert made.outputs is not None
        ref = made.outputs["conversations"]
        landed.count += ref.facts["conversations"]
        path = landed.folder / f"{stem}-{ref.digest[:12]}.jsonl"
        if land(host.store, ref, path) or not _told(host, path).exists():
            landed.files.append(path.name)
    return landed


def note_told(host: Host, landed: Landed) -> None:
    """Remember that the files of ``landed`` have been told of; a run that was ended before is to tell of them again."""
    for name in landed.files:
        write_atomically(_told(host, landed.folder / name), b"")


def _told(host: Host, path: Path) -> Path:
    return host.state / "told" / digest_bytes(str(path).encode())


def _answers(settings: Settings, run: Executor, memo: Any) -> list[Made]:
    check(settings)
    target = obtain_verifier(settings, run, memo)
    verifier.check_decodes(settings, target)
    answered = run.map(answer_nodes(settings, target))
    for made in answered:
        if made.outputs is not None:
            run.require(made)
    return answered


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
