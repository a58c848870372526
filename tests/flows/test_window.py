"""A run that works in a window of time: it is out in time, keeps what it finished, and gives what an unbroken one gives."""

import json
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings
from pydantic import ValidationError

from artifacts.code_digest import closure
from artifacts.stage import Node
from errors import UserError
from flows.windowed import Opened, in_window
from running.launch import Order
from running.snapshot import project_root
from running.timekeeper import Timekeeper
from running.walk import Step, Walk
from running.window import CODE, Deadline, Window, WindowClosed, enter, require_open
from tasks import hidden_states, training
from tasks.curves import read_curves
from tasks.formats import CURVES
from tasks.operation_settings import WindowSettings
from tasks.settings import Settings
from tests.flows.test_crash import MARK, checkpoints, mark
from tests.projects import Project, wait_for

Finished = tuple[Project, list[dict[str, Any]]]


def window(start: str, end: str, zone: str = "UTC") -> Window:
    found = Window.of(WindowSettings(start=start, end=end, timezone=zone))
    assert found is not None
    return found


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_a_window_over_midnight_is_open_on_both_sides_of_it() -> None:
    night = window("22:00", "06:00")
    assert night.closes(at("2026-03-01 23:00")) == night.closes(at("2026-03-02 05:59")) == at("2026-03-02 06:00")
    assert night.closes(at("2026-03-02 06:00")) is None and night.closes(at("2026-03-02 21:59:59")) is None
    assert night.opens(at("2026-03-02 06:00")) == at("2026-03-02 22:00")
    assert night.seconds == 8 * 3600 and window("09:00", "17:30").seconds == 8.5 * 3600
    assert window("09:00", "17:30").closes(at("2026-03-02 17:00")) == at("2026-03-02 17:30")


def test_a_zones_clock_changes_the_length_of_a_night() -> None:
    night = window("22:00", "06:00", "Europe/Berlin")
    begin = night.opens(at("2026-03-28 12:00"))
    closes = night.closes(begin)
    assert begin == at("2026-03-28 21:00") and closes == at("2026-03-29 04:00"), "an hour is left out in that night"


@pytest.mark.parametrize(("value", "clock"), [(1320, "22:00:00"), (79_230, "22:00:30"), ("06:00", "06:00"), ("22:00", "22:00")])
def test_a_time_of_day_is_what_yaml_makes_of_it(value: Any, clock: str) -> None:
    assert WindowSettings.model_validate({"start": value, "end": "12:00"}).start == clock


@pytest.mark.parametrize(
    "wrong", [{"start": "22:00"}, {"start": "6", "end": "7:00"}, {"timezone": "Mars"}, {"start": "01:00", "end": "01:00:00"}]
)
def test_a_window_that_means_nothing_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        Settings.model_validate({"window": wrong})


def test_a_closed_window_is_told_or_waited_for() -> None:
    soon = (datetime.now(UTC) + timedelta(seconds=1.5)).strftime("%H:%M:%S")
    later = window(soon, (datetime.now(UTC) + timedelta(hours=1)).strftime("%H:%M:%S"))
    with pytest.raises(WindowClosed, match=r"opens in [012] s: start the run then, or set window.wait"):
        enter(later, wait=False)
    closes = enter(later, wait=True)
    assert closes is not None and closes - datetime.now(UTC) > timedelta(minutes=55)
    with pytest.raises(WindowClosed, match=r"opens in 24.0 h|opens in 23.\d h"):
        enter(later, wait=False, after=closes)
    assert enter(None, wait=False) is None


def planned(*steps: Step) -> Any:
    """A walk that has planned steps."""
    has_work = any(step.status != "hit" for step in steps)
    stages = {stage.name: stage for stage in (hidden_states.STAGE, training.STAGE)}
    return SimpleNamespace(has_work=has_work, steps=list(steps), stages=stages)


def test_a_plan_needs_an_open_window_that_is_long_enough() -> None:
    start = datetime.now(UTC) + timedelta(hours=1)
    closed = WindowSettings(start=start.strftime("%H:%M"), end=(start + timedelta(hours=1)).strftime("%H:%M"))
    waiting = closed.model_copy(update={"wait": True})
    require_open(closed, planned(Step("training", "", "hit")))
    require_open(WindowSettings(), planned(Step("training", "", "run")))
    require_open(waiting, planned(Step("hidden_states", "a", "run", estimate=3599), Step("training", "", "run", estimate=9e9)))
    with pytest.raises(WindowClosed):
        require_open(closed, planned(Step("training", "", "run")))
    with pytest.raises(UserError, match="hidden states a takes about 61 min and window.start to window.end is 60 min"):
        require_open(waiting, planned(Step("hidden_states", "a", "may run", estimate=3660)))


class Measured(Walk):
    """A walk whose store has measured a second a shard."""

    def __init__(self) -> None:
        """No store is read."""

    def estimate(self, node: Node) -> float | None:
        return 1.0 if node.tokens else None


def orders(count: int, passes_of: int = 1, tokens: int = 512) -> list[Order]:
    node = Node(hidden_states.STAGE, "shard", {}, {}, tokens=tokens, knobs={"shards_per_pass": passes_of})
    return [Order(node, str(number), {}, Path("/nowhere"), -1) for number in range(count)]


def ends_in(seconds: float, grace: float = 1.0) -> Deadline:
    return Deadline(datetime.now(UTC) + timedelta(seconds=seconds + 2.0), grace)


def test_no_shard_starts_that_cannot_finish(caplog: pytest.LogCaptureFixture) -> None:
    keeper = Timekeeper(Measured(), ends_in(10.5))
    taken, closed = keeper.in_time(orders(64))
    assert len(taken) == 10 and closed is not None and "takes about 11 s, and 10 s are left" in str(closed)
    assert len(keeper.in_time(orders(64, passes_of=4))[0]) == 8, "two passes; a third would end too late, however small"
    assert len(Timekeeper(Measured(), Deadline()).in_time(orders(64))[0]) == 64
    short = Deadline(datetime.now(UTC) + timedelta(seconds=60), 1.0, length=3.0)
    with pytest.raises(UserError, match="takes about 4 s and window.start to window.end is 3 s, so that no window is long"):
        Timekeeper(Measured(), short).require(orders(3, passes_of=4))
    with pytest.raises(WindowClosed, match="would start too late"):
        Timekeeper(Measured(), ends_in(0.5)).require(orders(1, tokens=0))
    Timekeeper(Measured(), ends_in(10.5)).require(orders(1, tokens=0))
    assert "hidden states: no rate is known yet" in caplog.text


def test_what_resumes_may_start_whatever_it_takes() -> None:
    long = Order(Node(training.STAGE, "", {}, {}, tokens=1), "", {}, Path("/nowhere"), -1)
    short = datetime.now(UTC) + timedelta(seconds=2.9)
    Timekeeper(Measured(), Deadline(short, 0.1, length=0.5)).require([long])
    with pytest.raises(WindowClosed, match="would start too late"):
        Timekeeper(Measured(), Deadline(short, 1.0, length=0.5)).require([long])


def test_what_runs_is_asked_to_stop_before_it_is_ended() -> None:
    """In this order, each once, and neither where the work is done before."""
    said: list[str] = []
    ended = Event()

    def end(error: Exception) -> None:
        said.append(str(error).partition(";")[0])
        ended.set()

    with ends_in(1.0, grace=0.7).kept(lambda: said.append("asked"), end):
        assert ended.wait(60)
    assert said == ["asked", "what ran was ended"]
    with ends_in(2.0, grace=0.5).kept(lambda: said.append("asked"), end):
        pass
    time.sleep(2.2)
    assert len(said) == 2


def test_work_that_was_cut_off_goes_on_in_the_next_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting is asked for: the second window is another one than that which closed."""
    opened: list[datetime | None] = []
    first, second = at("2026-03-01 06:00"), at("2026-03-02 06:00")

    def enter(hours: Window | None, wait: bool, after: datetime | None = None) -> datetime:
        assert wait
        opened.append(after)
        return second if after else first

    monkeypatch.setattr("flows.windowed.enter", enter)
    said = tmp_path / "said"

    def work(opened: Opened) -> str:
        if not done:
            done.append("cut off")
            raise WindowClosed("it is over")
        return "done"

    done: list[str] = []
    waiting = WindowSettings(start="22:00", end="06:00", wait=True)
    assert in_window(waiting, planned(Step("training", "", "run")), said, work) == "done"
    assert opened == [None, first] and done == ["cut off"]


def test_settings_of_a_window_are_in_no_closure() -> None:
    for stage in (hidden_states.STAGE, training.STAGE):
        reached = closure(project_root(), stage.module)
        assert "tasks.operation_settings" not in reached and not any(name.startswith("running") for name in reached)


AFTER = (
    'for d in state/devices/*; do [ ! -e "$d" ] || flock -n "$d" true || echo "$d"; done >> after.txt; echo free >> after.txt'
)


def hold(project: Project, what: str) -> Path:
    """The file that makes a stage stand still while it is there, so that a window can end in its middle on any machine."""
    return project.folder / f"hold-{what}"


def holding(project: Project) -> None:
    """Extraction stands still after a shard, training after each step from its third on, while their files are there."""
    standing = {what: f"__import__('os').path.exists({str(hold(project, what))!r})" for what in ("extraction", "training")}
    line = "                _one_pass(jobs[start : start + size], checkpoint, dtype, resident, transport, weights)\n"
    still = f"                while {standing['extraction']}:\n                    __import__('time').sleep(0.05)\n"
    project.edit("tasks/hidden_states.py", line, line + still)
    line = "        self.global_step += 1\n"
    still = f"        while self.global_step >= 3 and {standing['training']} and not self.should_stop():\n"
    project.edit("kimi_adapters/training_loop.py", line, line + still + "            time.sleep(0.05)\n")
    for what in standing:
        hold(project, what).touch()


def limits(start: float, end: float, *more: str) -> list[str]:
    """Settings of a window from so many seconds to so many seconds from now."""
    clocks = [(datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%H:%M:%S") for seconds in (start, end)]
    chosen = [f"start='{clocks[0]}'", f"end='{clocks[1]}'", *more]
    return [part for one in chosen for part in ("--set", f"window.{one}")]


def run_in_window(project: Project, seconds: float) -> "subprocess.CompletedProcess[str]":
    """Run in a window that ends in so many seconds."""
    end = time.time() + seconds
    chosen = limits(-60, seconds, "grace=6", f"after={AFTER}", "before=echo begun >> after.txt")
    command = project.command("run", str(project.settings), *chosen)
    pipe = subprocess.PIPE
    run = subprocess.Popen(command, cwd=project.folder, env=project.environment, stdout=pipe, stderr=pipe, text=True)
    wait_for(lambda: time.time() > end or run.poll() is not None, seconds + 60)
    assert not project.children(), "the devices are free when the window ends"
    output, errors = run.communicate(timeout=240)
    assert run.returncode in (0, CODE), errors[-3000:]
    return subprocess.CompletedProcess(command, run.returncode, output, errors)


def run_in_windows(project: Project, done: Callable[[str], Any], seconds: float = 20.0) -> str:
    """Run in windows, each twice as long as the one before, until ``done`` with the last line; what each finished is kept."""
    while True:
        last = run_in_window(project, seconds).stderr.splitlines()[-1].removeprefix("eyas: ")
        if done(last):
            return last
        seconds *= 2


def told(api: str) -> list[str]:
    """What Prefect says of the runs that a window has ended, none of which failed."""
    with temporary_settings({PREFECT_API_URL: api}), get_client(sync_client=True) as client:
        states = [run.state for run in client.read_flow_runs() if run.state and run.state.name == "Window closed"]
    assert all(state.is_completed() for state in states)
    return [str(state.message) for state in states]


@pytest.mark.serve
def test_windows_end_in_extraction_and_in_training(project: Project, finished: Finished, prefect_api: str) -> None:
    """Extraction and training run again, as their code is another; what follows hits, if they give the same bytes."""
    before = {stage: set(project.records(stage)) for stage in ("hidden_states", "training", "acceptance")}

    def new(stage: str) -> set[Path]:
        return set(project.records(stage)) - before[stage]

    holding(project)
    outside = project.eyas("run", str(project.settings), *limits(3600, 7200, f"after={AFTER}"))
    assert outside.returncode == CODE and "opens in 60 min: start the run then" in outside.stderr
    assert "starting Prefect" not in outside.stderr and not (project.folder / "after.txt").exists()

    sentence = run_in_windows(project, lambda _: new("hidden_states"))
    assert len(new("hidden_states")) < len(before["hidden_states"]), "the window ended in mid-extraction"
    assert "the next one goes on from here" in sentence and sentence in told(prefect_api)

    hold(project, "extraction").unlink()
    run_in_windows(project, lambda sentence: "training stopped after step" in sentence, 30.0)
    assert not new("training")
    mark(checkpoints(project)[-1])

    hold(project, "training").unlink()
    run_in_windows(project, lambda _: new("training"), 300.0)
    assert len(new("hidden_states")) == len(before["hidden_states"]) and not new("acceptance")
    drafts = [json.loads(path.read_text())["outputs"] for path in project.records("training")]
    assert len(drafts) == 2 and drafts[0]["draft"] == drafts[1]["draft"], "bit for bit that of the unbroken run"
    losses = [curves_of(project, one["curves"]["digest"])["loss"][0] for one in drafts]
    assert MARK in losses, "it went on from where the window had ended"
    said = (project.folder / "after.txt").read_text().split("\n")[:-1]
    assert said == ["begun", "free"] * (len(said) // 2) and len(said) >= 6, "each window begins and ends, nothing held"


def curves_of(project: Project, digest: str) -> dict[str, list[float | None]]:
    """The curves of a training."""
    with open(project.store / "blobs" / digest[:2] / digest / CURVES, "rb") as file:
        return read_curves(file)


def test_the_command_after_runs_although_that_before_failed(tmp_path: Path) -> None:
    said = tmp_path / "said"
    opened = Opened(Deadline(), said, before="echo no; exit 3", after="echo free")
    with pytest.raises(UserError, match=f"window.before ended with code 3 .*{said}"), opened.holding(cast(Any, None)):
        raise AssertionError("devices must not be taken")
    assert said.read_text() == "no\nfree\n"


def test_a_window_that_closes_is_no_failure(tmp_path: Path) -> None:
    def work(opened: Opened) -> dict[str, Any]:
        raise WindowClosed("it is over")

    ended = in_window(WindowSettings(), planned(Step("training", "", "run")), tmp_path / "said", work)
    assert (ended.name, ended.message) == ("Window closed", "it is over") and ended.is_completed()
