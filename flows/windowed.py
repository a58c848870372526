"""Work inside the window of time that the settings name; what does not fit waits for the next one, or ends the run."""

import logging
import math
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import State
from prefect.states import Completed

from errors import UserError
from running.execution import Execution
from running.leftovers import afterwards
from running.walk import Walk
from running.window import CLOSED, Deadline, Window, WindowClosed, enter, require_open
from tasks.operation_settings import WindowSettings

log = logging.getLogger("eyas")


@dataclass(frozen=True)
class Opened:
    """A window that is open: when devices must be free, and the commands around the time in which they are held."""

    deadline: Deadline
    output: Path
    before: str | None = None
    after: str | None = None

    @contextmanager
    def holding(self, execution: Execution) -> Iterator[None]:
        """Where devices may be held. ``after`` runs as soon as they are free, whatever happened."""
        with afterwards(self.after, self.output):
            _do(self.before, self.output)
            try:
                with self.deadline.kept(execution.time.ask_to_stop, execution.children.stop):
                    yield
            except BaseException:
                execution.children.stop()  # Prefect waits for its threads, and they for their children
                raise


def in_window(window: WindowSettings, planned: Walk | None, output: Path, work: Callable[[Opened], Any]) -> Any:
    """The result of ``work``; a Prefect state of its own, and no failure, where the window closed before it was done.

    ``planned`` is None where only the work itself will know its plan. What the commands of the window say goes to ``output``;
    a plan that only hits is done at any time, without them.
    """
    if planned and not planned.has_work:
        return work(Opened(Deadline(), output))
    hours, closes = Window.of(window), None
    while True:
        try:
            if planned:
                require_open(window, planned)
            closes = enter(hours, window.wait, after=closes)
            deadline = Deadline(closes, window.grace, hours.seconds if hours else math.inf)
            return work(Opened(deadline, output, window.before, window.after))
        except WindowClosed as closed:
            log.info("%s", closed)
            if not window.wait:
                return _ended(str(closed))


def _do(command: str | None, output: Path) -> None:
    if command is None:
        return
    quiet = subprocess.DEVNULL
    with open(output, "ab") as told:
        code = subprocess.run(command, shell=True, stdin=quiet, stdout=told, stderr=told, check=False).returncode
    if code:
        raise UserError(f"window.before ended with code {code} (what it said: {output}): correct the command")
    log.info("window.before: done (what it said: %s)", output)


def _ended(sentence: str) -> "State[Any]":
    return Completed(name="Window closed", message=sentence, data={CLOSED: sentence})
