"""The plan of a run: the pipeline walked without running anything. Needs neither Prefect nor torch."""

from collections.abc import Collection
from pathlib import Path

from flows.train_draft import train_draft
from running.host import Host
from running.plan import PlanExecutor
from running.progress import reading
from running.walk import Walk
from tasks import verifier
from tasks.settings import Settings


def open_host(settings: Settings) -> Host:
    """The host that the settings name."""
    return Host.open(settings.store.path, settings.store.state, settings.store.max_bytes, settings.store.mirror)


def plan(settings: Settings, host: Host, code: Path | None = None, left_out: Collection[str] = ()) -> Walk:
    """Walk the pipeline with the code of ``code`` (else of the checkout), without the files of the digests ``left_out``;
    refuses what cannot work."""
    walk = host.walk(code)
    train_draft(settings, PlanExecutor(walk), host.memo, host.forgotten.of, left_out)
    return walk


def say_what_is_left_out(settings: Settings, host: Host) -> None:
    """A line about the verifier's tensors that no stage reads: a vision tower, layers that predict further tokens."""
    parts = verifier.left_out(settings.verifier, host.memo)
    if parts:
        named = ", ".join(f"{part} ({count})" for part, count in sorted(parts.items()))
        reading.info(
            "%s: %d tensors are not the text model's and are left out: %s",
            settings.verifier.directory,
            sum(parts.values()),
            named,
        )
