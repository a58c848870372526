"""What the end of a window means for orders: which may start, and how those that run are told to stop."""

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from errors import ToldToStop
from running.job import STOP
from running.launch import Order
from running.walk import Walk
from running.window import Deadline, WindowClosed

log = logging.getLogger("eyas")
_SPENT = "seconds"  # a file in the scratch folder of a node that was told to stop


class Timekeeper:
    """Keeps one run's orders to its deadline, by the rates that the walk's store has measured."""

    def __init__(self, walk: Walk, deadline: Deadline) -> None:
        self._walk, self._deadline = walk, deadline
        self._running: set[Path] = set()
        self._asked = False

    def require(self, orders: list[Order]) -> None:
        """Raise ``WindowClosed`` where one child could not finish orders in time.

        A pass takes as long with fewer shards than it can have, since it reads every layer.
        """
        node = orders[0].node
        estimates = [seconds for order in orders if (seconds := self._walk.estimate(order.node)) is not None]
        size = int(node.knobs.get("shards_per_pass") or 1)
        whole = math.ceil(len(orders) / size) * size
        seconds = whole * sum(estimates) / len(estimates) if estimates else None
        label = f"{node.label} with {len(orders) - 1} more" if orders[1:] else node.label
        self._deadline.require(label, node.stage.name, seconds, node.stage.resumes)

    def in_time(self, orders: list[Order]) -> tuple[list[Order], WindowClosed | None]:
        """The first orders, as many as one child can finish in time, and why not all of them."""
        closed = None
        for count in range(len(orders), 0, -1):
            try:
                self.require(orders[:count])
                return orders[:count], closed
            except WindowClosed as raised:
                closed = raised
        return [], closed

    def ask_to_stop(self) -> None:
        """Tell what runs to leave a checkpoint and end, as far as it can."""
        if not self._asked:
            log.info("the window ends soon: what runs is told to stop")
        self._asked = True
        for scratch in list(self._running):
            scratch.mkdir(parents=True, exist_ok=True)
            (scratch / STOP).touch()

    @contextmanager
    def stoppable(self, orders: list[Order]) -> Iterator[None]:
        """While a child has orders: they can be told to stop, and the seconds until then count for their rate."""
        began = time.monotonic()
        scratches = {order.scratch for order in orders}
        for scratch in scratches:
            (scratch / STOP).unlink(missing_ok=True)
        self._running |= scratches
        if self._asked:  # while this one was on its way
            self.ask_to_stop()
        try:
            yield
        except ToldToStop as stopped:
            for order in orders:
                (order.scratch / _SPENT).write_text(str(spent(order) + time.monotonic() - began))
            raise self._deadline.closed(str(stopped)) from None
        finally:
            self._running -= scratches


def spent(order: Order) -> float:
    """Seconds that went into a node before it was told to stop."""
    try:
        return float((order.scratch / _SPENT).read_text())
    except FileNotFoundError:
        return 0.0
