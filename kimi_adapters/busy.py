"""How long at least one of several threads was at something."""

import threading
import time
from types import TracebackType


class Busy:
    """A context that any number of threads may be in at once; `seconds` are those in which one was."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._since = 0.0
        self.seconds = 0.0

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._since = time.monotonic()
            self._inside += 1

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self.seconds += time.monotonic() - self._since
