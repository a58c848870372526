"""Ctrl-C ends the process, whatever waits."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WAITING = """
import sys, threading, time
from running.stopping import at_interrupt, stop_on_interrupt
at_interrupt(lambda: print("ended", flush=True))
stop_on_interrupt({patience})
never = threading.Event()
threading._register_atexit(never.wait)  # as Prefect's log worker does
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("stopping", flush=True)
{then}
"""


@pytest.mark.parametrize(("then", "times"), [("", 1), ("never.wait()", 1), ("never.wait()", 2)])
def test_the_process_ends_although_something_waits_for_ever(then: str, times: int) -> None:
    patience = 1.0 if times == 1 else 300
    program = [sys.executable, "-P", "-c", WAITING.format(then=then, patience=patience)]
    process = subprocess.Popen(
        program, env={"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    said = {process.stdout.readline(), process.stdout.readline()}
    assert said == {"stopping\n", "ended\n"}
    if times == 2:
        process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and errors.count("what was finished is kept") == 1
