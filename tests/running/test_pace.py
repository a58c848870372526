"""Children that read the same layers stay together, whatever becomes of one of them."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from running.pace import AHEAD, Pace, join
from tests.projects import ROOT, wait_for

LAYERS = 8


class Child:
    """A real process on a place of its own."""

    def __init__(self, folder: Path, passes: int) -> None:
        place = join(folder)
        command = [sys.executable, "-m", "tests.running.pacing", *map(str, (folder, place, LAYERS, passes))]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=[place], bufsize=1
        )
        os.close(place)
        self.said: list[tuple[str, int]] = []
        self.times: dict[tuple[str, int], float] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            word, number, now = line.split()
            self.times.setdefault((word.replace("last", "took"), int(number)), float(now))
            self.said.append((word, int(number)))

    def go(self, layers: int) -> None:
        """Let it take so many layers more, as soon as the others let it."""
        assert self.process.stdin
        self.process.stdin.write("\n" * layers)

    def began(self) -> int:
        """How many layers it has begun."""
        return sum(word == "began" for word, _ in self.said)

    def until(self, layers: int) -> None:
        """Wait until it has begun so many."""
        wait_for(lambda: self.began() >= layers, 60)

    def last(self) -> list[int]:
        """The layers that it was the last to read."""
        return [layer for word, layer in self.said if word == "last"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Child]]:
    made: list[Child] = []

    def child(passes: int = 1) -> Child:
        made.append(Child(tmp_path / "pace", passes))
        return made[-1]

    yield child
    for one in made:
        one.process.kill()
        one.process.communicate()


def test_the_slowest_sets_the_pace_and_the_last_drops_the_pages(start: Callable[..., Child]) -> None:
    fast, slow = start(), start()
    fast.go(LAYERS)
    fast.until(AHEAD + 1)
    slow.go(1)
    fast.until(AHEAD + 2)
    slow.go(LAYERS)
    wait_for(lambda: ("left", 1) in fast.said and ("left", 1) in slow.said, 60)
    for layer in range(AHEAD + 1, LAYERS):
        assert fast.times["began", layer] >= slow.times["took", layer - AHEAD - 1], "no further before the slowest"
    dropped = [*fast.last(), *slow.last()]
    assert set(dropped) >= set(range(LAYERS - AHEAD - 1)), "each layer's pages go, but for those at the end"
    assert 0 in slow.last() and 0 not in fast.last()


def test_a_killed_child_is_waited_for_no_more(start: Callable[..., Child]) -> None:
    fast, lost = start(), start()
    lost.go(1)
    fast.go(LAYERS)
    fast.until(AHEAD + 2)
    lost.process.kill()
    wait_for(lambda: ("left", 1) in fast.said, 60)
    assert set(fast.last()) <= {0}, "of a layer that both read; one that is alone drops nothing"


def test_a_late_child_joins_the_next_round(start: Callable[..., Child]) -> None:
    first = start(passes=2)
    first.go(AHEAD + 2)
    first.until(AHEAD + 2)
    late = start()
    late.go(1)
    first.go(LAYERS - AHEAD - 3)
    first.until(LAYERS - 1)
    first.go(1)
    late.until(1)
    first.go(LAYERS)
    first.until(LAYERS + AHEAD + 1)
    assert first.began() <= LAYERS + AHEAD + 2
    late.go(LAYERS)
    wait_for(lambda: ("left", 2) in first.said and ("left", 1) in late.said, 60)
    assert late.times["began", 0] >= first.times["took", LAYERS - 1], "not before the first begins its second round"


def test_one_that_comes_at_the_first_layers_joins_at_once(tmp_path: Path) -> None:
    places = [join(tmp_path)]
    pace = Pace(tmp_path, places[0], available=lambda: 0)
    pace.begin(LAYERS, 1)
    for layer in range(AHEAD):
        pace.wait(layer)
        assert not pace.took(layer)
    places.append(join(tmp_path))
    other = Pace(tmp_path, places[1], available=lambda: 0)
    other.begin(LAYERS, 1)
    other.wait(0)
    assert other.took(0), "the first had it before"
    for place in places:
        os.close(place)


def test_weights_that_fit_hold_nobody_up(tmp_path: Path) -> None:
    places = [join(tmp_path), join(tmp_path)]
    pace = Pace(tmp_path, places[0], available=lambda: 1000)
    pace.begin(LAYERS, 900)
    for layer in range(LAYERS):
        pace.wait(layer)
        assert not pace.took(layer)
    for place in places:
        os.close(place)
