"""What a run starts ends with it, although it knows nothing of the run."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import subprocess, sys, time
from running.leftovers import leave_nothing_behind
if sys.argv[1] == "watched":
    leave_nothing_behind()
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"
server = subprocess.Popen([sys.executable, "-c", deaf])
print(server.pid, flush=True)
time.sleep(float(sys.argv[2]))
"""


def _lives(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def _gone(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while _lives(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not _lives(pid)


def _start(how: str, seconds: float) -> tuple["subprocess.Popen[str]", int]:
    command = [sys.executable, "-P", "-c", PROGRAM, how, str(seconds)]
    run = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    return run, int(run.stdout.readline())


@pytest.mark.parametrize("how", ["killed", "over"])
def test_a_server_that_ignores_everything_ends_with_its_run(how: str) -> None:
    run, server = _start("watched", 300 if how == "killed" else 1.0)
    assert not _gone(server, 0.5), "it lives as long as its run"
    if how == "killed":
        os.kill(run.pid, signal.SIGKILL)
    run.wait(10)
    assert _gone(server, 5)


AFTERWARDS = """
import subprocess, sys, time
from pathlib import Path
from running.leftovers import afterwards, leave_nothing_behind
leave_nothing_behind()
with afterwards("sleep 0.2; pwd; echo again", Path(sys.argv[1])):
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"
    child = subprocess.Popen([sys.executable, "-c", deaf])
    print(child.pid, flush=True)
    if sys.argv[2] == "raised":
        child.kill()
        raise SystemExit(3)
    time.sleep(300)
"""


@pytest.mark.parametrize("how", ["killed", "raised"])
def test_the_command_after_a_run_runs_whatever_happens(how: str, tmp_path: Path) -> None:
    said = tmp_path / "said"
    command = [sys.executable, "-P", "-c", AFTERWARDS, str(said), how]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert run.stdout is not None
    child = int(run.stdout.readline())
    if how == "killed":
        assert said.read_text() == "" and _lives(child)
        os.kill(run.pid, signal.SIGKILL)
    run.wait(30)
    deadline = time.monotonic() + 30
    while "again" not in said.read_text() and time.monotonic() < deadline:
        assert how == "killed", "the block is left when the command has ended"
        time.sleep(0.05)
    assert said.read_text() == f"{tmp_path}\nagain\n" and not _lives(child), "once, where the run was, when its child is gone"


def test_without_the_watcher_it_would_go_on() -> None:
    run, server = _start("alone", 300)
    os.kill(run.pid, signal.SIGKILL)
    run.wait(10)
    try:
        assert not _gone(server, 3)
    finally:
        os.kill(server, signal.SIGKILL)
