"""Progress of children as log lines: at most one a node every few seconds, with rate and time left."""

import logging
import threading
import time
from typing import Any

log = logging.getLogger("eyas")
reading = logging.getLogger("eyas.reading")  # said in a plan, too
_EVERY = 5.0  # seconds between two lines of one node


class ProgressLog:
    """Turns progress events into log lines."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first: dict[str, tuple[float, float]] = {}
        self._last: dict[str, float] = {}

    def show(self, label: str, event: dict[str, Any]) -> None:
        """Log an event unless the node's last line is too young."""
        now, done, total = time.monotonic(), float(event["done"]), float(event["total"])
        with self._lock:
            began, at = self._first.setdefault(label, (now, done))
            if now - self._last.get(label, began) < _EVERY:
                return
            self._last[label] = now
        rate = (done - at) / (now - began) if now > began else 0.0
        left = f", {(total - done) / rate:.0f} s left" if rate > 0 else ""
        note = f", {event['note']}" if event["note"] else ""
        share = 100 * done / total if total else 0.0
        log.info("%s: %.0f%% (%.0f of %.0f %s, %.1f/s%s)%s", label, share, done, total, event["unit"], rate, left, note)


class BytesLog:
    """Log lines about ``total`` bytes that several threads read: how many, how fast, how long to go."""

    def __init__(self, what: str, total: int) -> None:
        self._lock = threading.Lock()
        self._what, self._total, self._done = what, total, 0
        self._began = self._last = time.monotonic()

    def told(self, count: int) -> None:
        """``count`` more bytes were read."""
        with self._lock:
            self._done += count
            now = time.monotonic()
            if now - self._last < _EVERY:
                return
            self._last, done = now, self._done
        rate = done / (now - self._began)
        left = f", {max(0, self._total - done) / rate:,.0f} s left" if rate else ""
        reading.info("%s: %.1f of %.1f GB, %.2f GB/s%s", self._what, done / 1e9, self._total / 1e9, rate / 1e9, left)
