"""Nothing outlives a run: a watcher ends what a killed one leaves behind.

Children of stages hold a pipe of ours and end with it. Prefect starts its ephemeral server as an ordinary process, which would
go on after a ``kill -9`` of the run. The watcher holds such a pipe for it: when the run is gone, it ends every process that was
started with the run's mark in its environment. Standard library only: it runs as a script.
"""

import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path

MARK = "EYAS_RUN"
_PATIENCE = 2.0  # seconds to end by oneself


def leave_nothing_behind() -> None:
    """From here on, whatever this process starts ends with it, however it ends."""
    os.environ[MARK] = uuid.uuid4().hex
    watched, _ = os.pipe()  # the other end is open as long as this process lives, and in no process that it starts
    command = [sys.executable, "-I", "-S", __file__, os.environ[MARK]]
    quiet = subprocess.DEVNULL
    subprocess.Popen(command, stdin=watched, stdout=quiet, stderr=quiet, start_new_session=True)
    os.close(watched)


def marked(mark: str) -> list[int]:
    """Ids of the living processes that were started with this mark, this one aside."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
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
