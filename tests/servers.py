"""A real Prefect server of a test's own, and free ports."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(url: str, pause: float) -> bool:
    """Whether a server that is starting answers within 600 tries."""
    for _ in range(600):
        try:
            urllib.request.urlopen(url, timeout=1).close()
            return True
        except OSError:
            time.sleep(pause)
    return False


@contextmanager
def prefect_server(home: Path) -> Iterator[str]:
    """A Prefect server of one's own in ``home``; yields the address of its API."""
    port = free_port()
    environment = {
        **os.environ,
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }
    command = [
        sys.executable,
        "-m",
        "prefect",
        "server",
        "start",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--no-ui",
    ]
    with open(home / "server.log", "wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    url = f"http://127.0.0.1:{port}/api"
    try:
        if not answers(f"{url}/health", 0.2):
            raise RuntimeError((home / "server.log").read_text())
        yield url
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)
