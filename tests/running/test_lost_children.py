"""A lost child costs its pass alone: what it had not done goes on, and a device that loses two is put aside."""

import logging
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from artifacts.records import Record, Records
from artifacts.stage import Node
from artifacts.store import Store
from errors import UserError
from running.devices import DevicePool
from running.execution import Execution
from running.launch import ChildFailed
from running.walk import Walk
from tests.projects import copy_checkout, wait_for
from tests.running import steps


class Bench:
    """An execution over slots of the processor, without a flow around it."""

    def __init__(self, folder: Path, slots: int) -> None:
        copy_checkout(folder / "code")
        shutil.copy2(steps.__file__, folder / "code" / "tasks")
        self.workspace = folder / "store" / "workspace"
        self.workspace.mkdir(parents=True)
        (folder / "run").mkdir()
        store = Store(folder / "store")
        self.walk = Walk(store, Records(store.root), folder / "code")
        self.pool = DevicePool(folder / "state", [], slots, share=False)
        self.execution = Execution(self.walk, folder / "state", folder / "run", self.pool, self.workspace)
        self._threads = ThreadPoolExecutor(8)

    def start(self, count: int, fault: str = "") -> list["Future[Record]"]:
        """Do so many nodes, each in a thread as in a flow."""
        nodes = [Node(steps.STAGE, str(n), {"number": n, "fault": fault}, {}) for n in range(count)]
        decisions = self.walk.decide(nodes)
        self.execution.expect(decisions)
        return [self._threads.submit(self.execution.do, decision) for decision in decisions]

    def go(self, *numbers: int) -> None:
        """Let children go on with these nodes."""
        for number in numbers:
            (self.workspace / f"go-{number}").touch()

    def children(self) -> dict[int, list[int]]:
        """Every child that began: its process, and the nodes it was given."""
        found = {int(path.name.removeprefix("child-")): path.read_text() for path in self.workspace.glob("child-*")}
        return {process: [int(number) for number in numbers.split()] for process, numbers in found.items() if numbers}

    def close(self) -> None:
        self.execution.children.stop()
        self._threads.shutdown()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[[int], Bench]]:
    made: list[Bench] = []

    def make(slots: int) -> Bench:
        made.append(Bench(tmp_path, slots))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_what_a_killed_child_had_not_done_goes_on_elsewhere(bench: Callable[[int], Bench]) -> None:
    one = bench(2)
    done = one.start(4)
    both = wait_for(lambda: len(found := one.children()) == 2 and found)
    (first, (handed_over, left)), (_, others) = both.items()
    one.go(handed_over, *others)
    wait_for(lambda: len(one.walk.records.paths()) == 3 and all(done[number].done() for number in others))
    os.kill(first, signal.SIGKILL)
    one.go(left)
    records = [future.result(60) for future in done]
    (third,) = one.children().keys() - both.keys()
    assert one.children()[third] == [left], "what was handed over is not done again"
    devices = [record.lineage["device"] for record in records]
    assert devices[left] == devices[others[0]] != devices[handed_over], "elsewhere, since another device is free"
    assert not one.pool.aside
    assert all(record.lineage["pass"] == {"tokens": 1} for record in records)


def test_an_error_of_one_child_is_tried_once_more_and_the_users_never(bench: Callable[[int], Bench]) -> None:
    one = bench(1)
    one.go(0, 1)
    assert all(future.result(60) for future in one.start(2, "once"))
    assert len(one.children()) == 2
    failed = one.start(2, "user")
    for future in failed:
        with pytest.raises(UserError, match="mend it"):
            future.result(60)
    assert len(one.children()) == 3


def test_a_device_that_loses_two_children_is_put_aside(bench: Callable[[int], Bench], caplog: pytest.LogCaptureFixture) -> None:
    one = bench(1)
    one.go(0, 1)
    with caplog.at_level(logging.WARNING, "eyas"):
        for future in one.start(2, "killed"):
            with pytest.raises(ChildFailed, match=r"no device is left for .*: two children died on each of cpu:0; .*SIGKILL"):
                future.result(60)
    assert len(one.children()) == 2
    assert len([line for line in caplog.messages if "uses it no more" in line]) == 1
