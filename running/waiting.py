"""Nodes that wait for a device together, and who takes how many of them along."""

import math
import threading
import time
from collections import deque
from collections.abc import Iterable

from running.launch import Order

AT_ONCE = 64  # nodes that a run has in hand at a time, each with a thread and a file that is its lock
MOST_AT_ONCE = 512
TRIES = 3  # children that may die with a node: two on a device that is then put aside, one on another
_SETTLED = 0.5  # seconds without an arrival after which a share is taken although nodes are missing: another run may hold them


def at_once(devices: int, pass_size: int) -> int:
    """Nodes to have in hand: two passes for each device, so that one can be gathered while another is done."""
    return min(max(AT_ONCE, 2 * devices * pass_size), MOST_AT_ONCE)


class Waiting:
    """Nodes of one gathering stage that wait for a device; whoever finds one takes a fair share of them along.

    A share is fair when all nodes are there that can be: those announced, or as many as a run has in hand. Else the first child
    would leave with what came first.
    """

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.at_once = AT_ONCE
        self.coming: set[str] = set()  # keys announced and not yet queued
        self.queue: deque[Order] = deque()
        self.taken: set[int] = set()  # orders that children have and have not ended
        self.ended: dict[int, BaseException | None] = {}
        self.children = 0
        self.arrived = math.inf

    def expect(self, keys: Iterable[str]) -> None:
        """Announce nodes."""
        with self.condition:
            self.coming.update(keys)

    def add(self, order: Order) -> None:
        """Queue an order."""
        with self.condition:
            self.coming.discard(order.key)
            self.queue.append(order)
            self.arrived = time.monotonic()
            self.condition.notify_all()

    def forget(self, key: str) -> None:
        """A node that will not be queued after all."""
        with self.condition:
            self.coming.discard(key)

    def complete(self) -> bool:
        """Whether no more can come before a share is taken; to be asked under the condition."""
        in_hand = len(self.queue) + len(self.taken)
        return not self.coming or in_hand >= self.at_once or time.monotonic() - self.arrived > _SETTLED

    def take(self, devices: int) -> list[Order]:
        """A device's share of what is in hand, of which idle devices get as much; to be asked under the condition."""
        fair = math.ceil((len(self.queue) + len(self.taken)) / devices)
        among_idle = math.ceil(len(self.queue) / max(1, devices - self.children))
        taken = [self.queue.popleft() for _ in range(min(fair, among_idle))]
        self.children += 1
        self.taken.update(map(id, taken))
        self.condition.notify_all()
        return taken

    def give_back(self, orders: Iterable[Order], device: str, error: BaseException) -> None:
        """The orders that a child on ``device`` has not ended, and it died: they are next; one tried too often has failed."""
        with self.condition:
            left = [order for order in orders if id(order) in self.taken]
            for order in reversed(left):
                order.lost.append(device)
                if len(order.lost) < TRIES:
                    self.taken.remove(id(order))
                    self.queue.appendleft(order)
                else:
                    self.end(order, error)
            self.condition.notify_all()

    def withdraw(self, order: Order) -> None:
        """An order for which nobody waits any more."""
        with self.condition:
            if order in self.queue:
                self.queue.remove(order)
            self.condition.notify_all()

    def leave(self) -> None:
        """A child that took a share has ended."""
        with self.condition:
            self.children -= 1

    def end(self, order: Order, error: BaseException | None) -> None:
        """An order is done, or has failed; what came first counts."""
        with self.condition:
            if id(order) in self.taken:
                self.taken.remove(id(order))
                self.ended[id(order)] = error
            self.condition.notify_all()
