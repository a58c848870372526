"""A serving engine as a child of ours: on a free port of loopback, waited for until it is healthy, and never left behind."""

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from errors import UserError
from kimi_adapters import engine_keeper

# Of our own process and no engine's: what it imports, how many threads a stage leases; its sockets need a short path.
_OURS = ("PYTHONPATH", "PYTHONHOME", "PYTHONUNBUFFERED", "TMPDIR", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "MPLBACKEND")
_QUIET = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
_ASKED_EVERY, _TOLD_EVERY = 0.25, 5.0  # seconds
_PATIENCE = 10.0  # seconds that an engine has to end by itself
_LOG_TAIL = 20_000  # bytes
_ERROR = re.compile(r"\b\w*(?:Error|Exception)\b: .+")


@contextmanager
def serving(
    command: Sequence[str],
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
    deadline: float = 1800.0,
    progress: Callable[[float], None] = lambda seconds: None,
) -> Iterator[str]:
    """Start ``command`` with ``--host`` and ``--port`` added, and yield its address once ``/health`` answers.

    What it prints goes to ``log``; ``progress`` hears every 5 s how many have passed. On leaving, or when this process ends
    however it ends, the engine and all that it started end too. ``UserError``: it cannot be started, ends before it is
    healthy (with its last error), or is not healthy after ``deadline`` seconds.
    """
    port = free_port()
    whole = [*command, "--host", "127.0.0.1", "--port", str(port)]
    inherited = {name: value for name, value in os.environ.items() if name not in _OURS}
    keeper = [sys.executable, "-I", "-S", engine_keeper.__file__, str(_PATIENCE)]
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [*keeper, *whole],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**inherited, **_QUIET, **(environment or {})},
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_healthy(process, url, log, deadline, progress)
        yield url
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_healthy(
    process: "subprocess.Popen[bytes]", url: str, log: Path, deadline: float, progress: Callable[[float], None]
) -> None:
    began = told = time.monotonic()
    with httpx.Client(trust_env=False, timeout=5.0) as http:
        while not _healthy(http, url):
            now = time.monotonic()
            if process.poll() is not None:
                raise UserError(
                    f"the engine ended with code {process.returncode} before it was ready{_why(log)} (its log: {log})"
                )
            if now - began > deadline:
                raise UserError(
                    f"the engine was not ready after {deadline:.0f} s (its log: {log}): raise engine.start_timeout, or see why"
                )
            if now - told >= _TOLD_EVERY:
                told = now
                progress(now - began)
            time.sleep(_ASKED_EVERY)


def _healthy(http: httpx.Client, url: str) -> bool:
    try:
        return http.get(f"{url}/health").status_code == 200
    except httpx.TransportError:
        return False


def _why(log: Path) -> str:
    """The last error that a log names: what an engine's parent process says after it is only that its child failed."""
    with open(log, "rb") as file:
        file.seek(max(0, os.path.getsize(log) - _LOG_TAIL))
        text = file.read().decode(errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    errors = [found.group() for line in lines if (found := _ERROR.search(line))]
    told = [error for error in errors if "See root cause above" not in error and "initialization failed" not in error]
    last = (told or errors or lines or [""])[-1].strip()
    return f": {last[:300]}" if last else ""
