"""Run manifests: ``<store>/runs/<run id>.json`` says when a run was, with which settings, and what its nodes were.

A run writes its manifest when it begins, while it goes on, and at its end however that comes. One that was killed stays
``running`` in it: what it finished is known by its records, which are younger than its beginning.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from artifacts.disk import checked, unchecked, write_atomically
from errors import UserError

log = logging.getLogger("eyas")
_EVERY = 20.0  # seconds between two writes of a manifest while the run goes on


class RunNode(BaseModel):
    """One node of a run; ``key`` is None where a plan could not know it, ``digest`` until it is made."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stage: str
    node: str
    key: str | None
    status: str
    digest: str | None


class Run(BaseModel):
    """One run: ``began`` and ``ended`` in ISO 8601, UTC. ``smoke``: it was limited to a few samples."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: str
    name: str
    began: str
    ended: str | None
    state: Literal["running", "completed", "failed"]
    smoke: bool = False
    nodes: list[RunNode]


def read_run(path: Path) -> Run:
    """The manifest in a file; ``ValueError`` when it is torn or was changed."""
    run = Run.model_validate_json(unchecked(path.read_bytes()))
    if run.run != path.stem:
        raise ValueError(f"it is the manifest of run {run.run}")
    return run


class Runs:
    """The run manifests of a store."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute() / "runs"

    def paths(self) -> list[Path]:
        """The files of all manifests, oldest first: a run's id begins with its time."""
        return sorted(self.root.glob("[!.]*.json"))

    def newest(self, count: int) -> list[Run]:
        """The newest runs, newest first; a damaged manifest is passed over, so that an older run takes its place."""
        return list(islice(self._readable(), count))

    def roots(self, count: int) -> list[Run]:
        """The runs that a collection goes by: the newest, and as many whole ones that came to their end; newest first.

        Else a few runs that a gate stopped early, or smoke runs, would take away the states of the last whole run.
        """
        newest: list[Run] = []
        completed: list[Run] = []
        for run in self._readable():
            if len(completed) == count:
                break
            if len(newest) < count:
                newest.append(run)
            if run.state == "completed" and not run.smoke:
                completed.append(run)
        found = {run.run: run for run in (*newest, *completed)}
        return [found[name] for name in sorted(found, reverse=True)]

    def _readable(self) -> Iterator[Run]:
        for path in reversed(self.paths()):
            try:
                yield read_run(path)
            except (FileNotFoundError, ValueError):
                log.warning("run manifest %s is damaged and is passed over", path)

    def put(self, run: Run) -> None:
        """Write a manifest durably."""
        write_atomically(self.root / f"{run.run}.json", checked(run.model_dump_json(indent=1).encode()))

    @contextmanager
    def noting(self, run_id: str, name: str, nodes: Callable[[], list[RunNode]], smoke: bool = False) -> Iterator[None]:
        """Keep the manifest of a run up to date from here to the end of the block."""
        noted = Run(run=run_id, name=name, began=_now(), ended=None, state="running", nodes=nodes(), smoke=smoke)
        self.put(noted)
        ended, state = threading.Event(), "failed"

        def follow() -> None:
            latest = noted
            while not ended.wait(_EVERY):
                newer = latest.model_copy(update={"nodes": nodes()})
                if newer != latest:
                    self._try_put(newer)
                    latest = newer

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield
            state = "completed"
        finally:
            ended.set()
            thread.join()
            self._try_put(noted.model_copy(update={"nodes": nodes(), "ended": _now(), "state": state}))

    def _try_put(self, run: Run) -> None:
        try:
            self.put(run)
        except (OSError, UserError) as error:  # the run's own error, or its result, matters more
            log.warning("the manifest of run %s could not be written: %s", run.run, error)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
