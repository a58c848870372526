"""Nothing outlives a run: a watcher ends what a killed one leaves behind.

Children of stages hold a pipe of ours and end with it. Prefect starts its ephemeral server as an ordinary process, which would
go on after a ``kill -9`` of the run. The watcher holds such a pipe for it: when the run is gone, it ends every process that was
started with the run's mark in its environment. Another watcher runs a command when all of that is gone. Standard library
only: it runs as a script.
"""

import logging
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

log = logging.getLogger("eyas")
MARK, WINDOW, WORK = "EYAS_RUN", "EYAS_WINDOW", "EYAS_WORK"  # of a run, of a window, of a worker
_PATIENCE = 2.0  # seconds to end by oneself


def leave_nothing_behind() -> None:
    """From here on, whatever this process starts ends with it, however it ends."""
    os.environ[MARK] = uuid.uuid4().hex
    _watch(MARK)


@contextmanager
def afterwards(command: str | None, output: Path) -> Iterator[None]:
    """When the block is left, or this process is gone, and what it started there has ended: run a shell's command.

    A process of its own does that in either case, so that a ``kill -9`` changes nothing. What the command says goes to
    ``output``.
    """
    if command is None:
        yield
        return
    os.environ[WINDOW] = uuid.uuid4().hex
    watcher, held = _watch(WINDOW, command, output)
    try:
        yield
    finally:
        del os.environ[WINDOW]
        os.close(held)
        code = watcher.wait()
        level = logging.WARNING if code else logging.INFO
        log.log(level, "window.after: ended with code %d (what it said: %s)", code, output)


def _watch(name: str, command: str | None = None, output: Path | None = None) -> tuple["subprocess.Popen[bytes]", int]:
    """Start a watcher of what has the mark ``name``; and the descriptor whose closing, by whatever end, it waits for."""
    watched, held = os.pipe()  # this end is open as long as this process lives, and in no process that it starts
    arguments = [sys.executable, "-I", "-S", __file__, f"{name}={os.environ[name]}", *([command] if command else [])]
    unmarked = {key: value for key, value in os.environ.items() if key not in (MARK, WINDOW, WORK)}
    with open(output or os.devnull, "ab") as told:
        watcher = subprocess.Popen(
            arguments, stdin=watched, stdout=told, stderr=subprocess.STDOUT, env=unmarked, start_new_session=True
        )
    os.close(watched)
    return watcher, held


def marked(mark: str) -> list[int]:
    """Ids of the living processes that were started with this mark (``NAME=value``), this one aside."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


def end(mark: str) -> None:
    """End the marked processes: asked first, then killed."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in marked(mark):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + _PATIENCE
        while marked(mark) and time.monotonic() < deadline:
            time.sleep(0.1)


if __name__ == "__main__":
    while os.read(0, 1):
        pass
    end(sys.argv[1])
    if sys.argv[2:]:
        raise SystemExit(subprocess.run(sys.argv[2], shell=True, stdin=subprocess.DEVNULL, check=False).returncode)
