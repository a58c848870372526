"""The window of time in which a run may hold devices: when it opens and closes, and that what runs is out of it in time."""

import contextvars
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from datetime import time as clock
from typing import Any
from zoneinfo import ZoneInfo

from errors import UserError
from running.launch import Stopped
from running.walk import Walk

log = logging.getLogger("eyas")
CLOSED = "window"  # of a flow's result: why it ended before its work was done
CODE = 75  # sysexits' EX_TEMPFAIL: try again later
_END = 2.0  # seconds before the window's end at which what still runs is ended
_LOOK = 30.0  # seconds after which the clock is looked at again: it may be set, and a machine may sleep


class WindowClosed(Stopped):
    """The window is closed, or what is left of it too short; what was finished is kept for the next one. No failure."""


@dataclass(frozen=True)
class Window:
    """From ``start`` to ``end`` each day, over midnight where the end comes first."""

    start: clock
    end: clock
    zone: ZoneInfo

    @classmethod
    def of(cls, settings: Any) -> "Window | None":
        """The window that the settings name."""
        if settings.start is None:
            return None
        return cls(settings.clock("start"), settings.clock("end"), ZoneInfo(settings.timezone))

    def __str__(self) -> str:
        return f"{self.start} to {self.end} {self.zone}"

    @property
    def seconds(self) -> float:
        """How long it is, but for a change of the clock."""
        start, end = (timedelta(hours=t.hour, minutes=t.minute, seconds=t.second) for t in (self.start, self.end))
        return ((end - start) % timedelta(days=1)).total_seconds()

    def closes(self, now: datetime) -> datetime | None:
        """When the window that is open ends; None where none is."""
        return next((end for start, end in self._around(now) if start <= now < end), None)

    def opens(self, now: datetime) -> datetime:
        """When the next one opens."""
        return min(start for start, _ in self._around(now) if start > now)

    def _around(self, now: datetime) -> Iterator[tuple[datetime, datetime]]:
        """Yesterday's window to the day after tomorrow's, in UTC: a zone's own times do not compare across its changes."""
        today = now.astimezone(self.zone).date()
        for days in (-1, 0, 1, 2):
            day = today + timedelta(days)
            last = day + timedelta(self.end <= self.start)
            yield tuple(datetime.combine(d, t, self.zone).astimezone(UTC) for d, t in ((day, self.start), (last, self.end)))  # type: ignore[misc]


def enter(window: Window | None, wait: bool, after: datetime | None = None) -> datetime | None:
    """When the open window closes (None: never); outside of it ``WindowClosed``, or with ``wait`` it is waited for.

    A window that closes at ``after`` has been used: the next one is meant.
    """
    if window is None:
        return None
    while (closes := window.closes(datetime.now(UTC))) in (None, after):
        left = (window.opens(datetime.now(UTC)) - datetime.now(UTC)).total_seconds()
        if not wait:
            raise WindowClosed(f"the window {window} opens in {_told(left)}: start the run then, or set window.wait")
        log.info("waiting %s for the window %s", _told(left), window)
        _sleep(left)
    return closes


def require_open(settings: Any, walk: Walk) -> None:
    """Refuse a plan with something to run that no window is long enough for, and one that would find the window closed.

    ``UserError`` for the one, ``WindowClosed`` for the other, unless it is waited for.
    """
    window = Window.of(settings)
    if window is None or not walk.has_work:
        return
    for step in walk.steps:
        if step.estimate and step.estimate > window.seconds and not walk.stages[step.stage].resumes:
            raise _never(f"{step.stage.replace('_', ' ')} {step.node}", step.estimate, window.seconds)
    if not settings.wait:
        enter(window, wait=False)


def _never(label: str, seconds: float, length: float) -> UserError:
    return UserError(
        f"{label} takes about {_told(seconds)} and window.start to window.end is {_told(length)}, so that no window is long "
        "enough: widen it, or give less to one task"
    )


def _sleep(seconds: float) -> None:
    """By the clock on the wall, which a machine that sleeps does not stop."""
    until = time.time() + seconds
    while (left := until - time.time()) > 0:
        time.sleep(min(left, _LOOK))


class Deadline:
    """When devices must be free; asked before anything starts. ``grace`` seconds before it what runs is told to stop.

    ``length`` is that of a whole window, in seconds.
    """

    def __init__(self, ends: datetime | None = None, grace: float = 0.0, length: float = math.inf) -> None:
        self._ends, self._grace, self._length = ends, grace, length
        self._said: set[str] = set()

    def left(self) -> float:
        """Seconds in which work may go on."""
        return math.inf if self._ends is None else self._ends.timestamp() - _END - time.time()

    def closed(self, what: str) -> WindowClosed:
        """What is raised for work that the next window does."""
        assert self._ends is not None
        return WindowClosed(f"{what}; the window ends at {self._ends:%H:%M:%S} UTC, and the next one goes on from here")

    def require(self, label: str, stage: str, seconds: float | None, resumes: bool) -> None:
        """Refuse work that could not finish; of what goes on from a checkpoint only the last ``grace`` seconds count."""
        left = self.left()
        if left == math.inf:
            return
        needed = 0.0 if resumes else seconds or 0.0
        if needed > self._length:
            raise _never(label, needed, self._length)
        if left <= self._grace or needed > left:
            needs = f"takes about {_told(needed)}, and {_told(left)} are left" if needed else "would start too late"
            raise self.closed(f"{label} {needs}")
        if seconds is None and not resumes and stage not in self._said:
            self._said.add(stage)
            log.warning("%s: no rate is known yet, so the end of the window may cut it off", stage.replace("_", " "))

    @contextmanager
    def kept(self, ask: Callable[[], None], end: Callable[[Exception], None]) -> Iterator[None]:
        """``ask`` what runs to stop when the grace begins, ``end`` it when the window does."""
        over = threading.Event()

        def keep() -> None:
            for seconds, act in ((self._grace, ask), (0.0, lambda: end(self.closed("what ran was ended")))):
                while (left := self.left() - seconds) > 0:
                    if over.wait(min(left, _LOOK)):
                        return
                act()

        context = contextvars.copy_context()  # Prefect's log wants to know of which run a line is
        thread = threading.Thread(target=context.run, args=(keep,), daemon=True)
        if self._ends is not None:
            thread.start()
        try:
            yield
        finally:
            over.set()


def _told(seconds: float) -> str:
    """A duration as people read it."""
    if seconds < 120:
        return f"{max(0.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
