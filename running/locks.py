"""One run at a time does a node: flock on its key. The kernel frees the lock of a killed holder."""

import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger("eyas")


@contextmanager
def key_lock(state: Path, key: str, label: str, check: Callable[[], None]) -> Iterator[int]:
    """Hold the lock of ``key``; yields its file descriptor.

    Hand the descriptor to the child that does the work: the lock then lasts until the last of the two is gone, so that a
    second run cannot start beside a child whose parent was killed a moment ago. ``check`` may raise while it waits.
    """
    folder = state / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder / key, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        waiting = False
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not waiting:
                    log.info("%s: another run does it, waiting", label)
                waiting = True
                check()
                time.sleep(0.1)
        yield fd
    finally:
        os.close(fd)
