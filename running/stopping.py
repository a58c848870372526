"""Ctrl-C: the run stops, and its process ends soon whatever Prefect waits for; a second one ends it at once."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

CODE = 130  # what shells report of a program that Ctrl-C ended
_PATIENCE = 10.0  # seconds for Prefect to note the end and hand over its last lines
_at_once: list[Callable[[], None]] = []


def at_interrupt(end: Callable[[], None]) -> None:
    """Call ``end`` in a thread as soon as the run is interrupted, whatever the main thread then waits for."""
    _at_once.append(end)


def stop_on_interrupt(patience: float = _PATIENCE) -> None:
    """Say what Ctrl-C does, raise ``KeyboardInterrupt``, be gone after ``patience`` seconds; to be called in the main thread.

    The key reaches Prefect's own server, too, which ends; Prefect would go on asking it for minutes, and at exit for ever.
    What ``at_interrupt`` was given is called at once; whatever else was started ends with the pipe that this process holds.
    """
    stopping = threading.Event()

    def leave() -> None:
        for end in _at_once:
            end()
        time.sleep(patience)
        os._exit(CODE)

    def interrupted(number: int, frame: FrameType | None) -> None:
        if stopping.is_set():
            os._exit(CODE)
        stopping.set()
        print("eyas: stopped; what was finished is kept, and the next run goes on from there", file=sys.stderr, flush=True)
        threading.Thread(target=leave, daemon=True).start()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupted)
