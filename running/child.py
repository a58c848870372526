"""The child process of one lease: ``python -P -m running.child ORDER.json``. It does its nodes and reports as JSON lines."""

import gc
import importlib
import json
import os
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from artifacts.disk import full_disk, is_full, takes_nothing
from errors import UserError
from running.guard import die_with_parent, hide_other_checkouts, links_in, only_declared
from running.job import Job, json_line
from running.pace import Pace


class Events:
    """The pipe to the parent; whole lines, from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "wb")
        self._lock = threading.Lock()

    def send(self, event: dict[str, Any]) -> None:
        """Write one event."""
        with self._lock:
            self._file.write(json_line(event))
            self._file.flush()


def _pipe_to_parent(order: dict[str, Any]) -> int:
    """The descriptor that the parent gave; torchrun hands on none, so a rank opens that of the process above it again."""
    if order.get("ranks", 1) == 1:
        return int(order["events"])
    return os.open(f"/proc/{os.getppid()}/fd/{order['events']}", os.O_WRONLY)


def _jobs(order: dict[str, Any], events: Events) -> list[Job]:
    pace = Pace(Path(order["pace"]["folder"]), order["pace"]["place"]) if order["pace"] else None
    return [
        Job(
            key=item["key"],
            label=item["label"],
            settings=item["settings"],
            knobs=item["knobs"],
            paths={name: Path(path) for name, path in item["paths"].items()},
            digests=item["digests"],
            scratch=Path(item["scratch"]),
            device=order["device"],
            threads=order["threads"],
            workspace=Path(order["workspace"]),
            send=events.send,
            pace=pace,
        )
        for item in order["jobs"]
    ]


def _work(order: dict[str, Any], events: Events) -> None:
    jobs = _jobs(order, events)
    allowed = [Path(order["workspace"]), Path(order["snapshot"]), Path(order["cache"])]
    closed = [Path(folder) for folder in order["closed"]]
    for job in jobs:
        allowed.append(job.scratch)
        for path in job.paths.values():
            allowed += [path, *links_in(path, closed)]
    entry = getattr(importlib.import_module(order["module"]), order["entry"])
    only_declared(allowed, closed)
    if order["gathers"]:
        entry(jobs)
    else:
        for job in jobs:
            entry(job)


def _full_disk(order: dict[str, Any], error: BaseException) -> UserError | None:
    """The sentence for a full disk where that is what stopped the child, whatever a library made of it."""
    if is_full(error):
        return full_disk(getattr(error, "filename", None) or ", ".join(order["closed"]))
    folders = {Path(order["workspace"]), *(Path(item["scratch"]) for item in order["jobs"])}
    return next((full_disk(folder) for folder in sorted(folders) if takes_nothing(folder)), None)


def main() -> int:
    """Do the order in the file named by the only argument; exit code 0, or 1 after an ``error`` event."""
    die_with_parent()
    gc.set_threshold(100_000, 50, 50)  # the imports of a training child make millions of objects that stay: 2 s less
    order = json.loads(Path(sys.argv[1]).read_text())
    hide_other_checkouts(Path(order["snapshot"]))
    events = Events(_pipe_to_parent(order))
    try:
        _work(order, events)
    except BaseException as error:  # whatever it is, the parent must hear of it
        with suppress(OSError):  # its log may lie on a full disk
            traceback.print_exc()
        if not isinstance(error, UserError):
            error = _full_disk(order, error) or error
        kind = "user" if isinstance(error, UserError) else type(error).__name__
        events.send({"event": "error", "kind": kind, "message": str(error)})
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
