"""An engine that we start is waited for, says why it did not come, and never outlives us."""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from errors import UserError
from kimi_adapters.engine_server import serving

ROOT = Path(__file__).parents[2]
# Like an engine: it needs a while, has a process of its own that ends by no signal but SIGKILL, and notes both ids.
ENGINE = """
import http.server, os, signal, subprocess, sys, time
time.sleep(0.3)
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"
core = subprocess.Popen([sys.executable, "-c", deaf])
open(os.environ["PIDS"], "w").write(f"{os.getpid()} {core.pid}")
class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
host, port = sys.argv[sys.argv.index("--host") + 1], int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer((host, port), Healthy).serve_forever()
"""
STARTER = """
import os, sys, time
from pathlib import Path
from kimi_adapters.engine_server import serving
with serving([sys.executable, "-c", os.environ["ENGINE"]], Path(sys.argv[1]) / "log"):
    print("healthy", flush=True)
    time.sleep(300)
"""


def ends(pid: int, seconds: float = 15.0) -> bool:
    """Whether a process is gone before so many seconds have passed."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]:
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def pids(folder: Path) -> list[int]:
    return [int(pid) for path in folder.glob("pids") for pid in path.read_text().split()]


def test_it_is_healthy_inside_and_gone_with_all_its_processes_outside(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ENGINE]
    with serving(command, tmp_path / "log", environment={"PIDS": str(tmp_path / "pids")}) as url:
        assert urllib.request.urlopen(f"{url}/health", timeout=10).status == 200
        assert not any(ends(pid, 0.1) for pid in pids(tmp_path))
    assert all(ends(pid) for pid in pids(tmp_path))


def test_it_ends_with_a_killed_starter(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "ENGINE": ENGINE, "PIDS": str(tmp_path / "pids")}
    command = [sys.executable, "-P", "-c", STARTER, str(tmp_path)]
    starter = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None and starter.stdout.readline() == "healthy\n"
    os.kill(starter.pid, signal.SIGKILL)
    starter.wait()
    assert all(ends(pid) for pid in pids(tmp_path))


def test_it_ends_with_a_killed_keeper(tmp_path: Path) -> None:
    """The keeper's whole group, as a terminal kills."""
    command = [sys.executable, "-c", ENGINE]
    with serving(command, tmp_path / "log", environment={"PIDS": str(tmp_path / "pids")}):
        server = pids(tmp_path)[0]
        keeper = int(Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[1])
        os.killpg(keeper, signal.SIGKILL)
        assert all(ends(pid) for pid in pids(tmp_path)) and len(pids(tmp_path)) == 2


def test_it_ends_with_an_error_inside(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ENGINE]
    with (
        pytest.raises(LookupError, match="inside"),
        serving(command, tmp_path / "log", environment={"PIDS": str(tmp_path / "pids")}),
    ):
        raise LookupError("inside")
    assert all(ends(pid) for pid in pids(tmp_path)) and len(pids(tmp_path)) == 2


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("raise MemoryError('no room for the cache')", "code 1 before it was ready: MemoryError: no room"),
        ("", "ended with code 0 before"),
    ],
)
def test_one_that_does_not_come_says_why(tmp_path: Path, program: str, why: str) -> None:
    with pytest.raises(UserError, match=why), serving([sys.executable, "-c", program], tmp_path / "log"):
        raise AssertionError("it is not healthy")


def test_one_that_is_not_ready_in_time_is_ended(tmp_path: Path) -> None:
    program = "import os, time; open(os.environ['PIDS'], 'w').write(str(os.getpid())); time.sleep(300)"
    environment = {"PIDS": str(tmp_path / "pids")}
    with (
        pytest.raises(UserError, match="not ready after 2 s"),
        serving([sys.executable, "-c", program], tmp_path / "log", environment=environment, deadline=2.0),
    ):
        raise AssertionError("it is not healthy")
    assert all(ends(pid) for pid in pids(tmp_path))


def test_a_command_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="FileNotFoundError: .*no-such-engine"), serving(["no-such-engine"], tmp_path / "log"):
        raise AssertionError("it is not healthy")
