"""``make serve``: a Prefect server, the work pool, a worker and the deployments of this folder, until Ctrl-C.

Everything that it starts ends with it, runs in progress included: what they finished is kept. Prefect's database lies in
``.eyas/prefect`` unless PREFECT_HOME says otherwise.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from artifacts.disk import locked
from errors import UserError
from running.leftovers import MARK, end, leave_nothing_behind

POOL = "eyas"
_HOST, _PORT = "127.0.0.1", 4200
_STARTS, _ENDS = 600.0, 10.0  # seconds


def free_port() -> int:
    """Prefect's own port if nobody listens on it, else another."""
    for port in (_PORT, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((_HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise UserError(f"no port is free on {_HOST}: end another program")


def environment(home: Path, port: int) -> dict[str, str]:
    """What server, worker and runs see."""
    return {
        **os.environ,
        "PWD": os.getcwd(),  # prefect.yaml's working directory
        "PREFECT_HOME": str(home),
        "PREFECT_API_URL": f"http://{_HOST}:{port}/api",
        "PREFECT_SERVER_UI_API_URL": "/api",  # else the UI of another port than 4200 would ask that one
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }


def serve(home: Path, stop: threading.Event) -> None:
    """Start everything, print the address, and end it when ``stop`` is set or a part has ended by itself.

    ``UserError``: what does not start, or another ``make serve`` of the same home.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(home / ".serving", wait=False))
        except BlockingIOError:
            raise UserError(f"another `make serve` uses {home}: end it, or set PREFECT_HOME") from None
        leave_nothing_behind()
        stack.callback(end, os.environ[MARK])
        port = free_port()
        env = environment(home, port)
        log = stack.enter_context(open(home / "serve.log", "ab"))

        def start(*arguments: str) -> "subprocess.Popen[bytes]":
            command = [sys.executable, "-m", "prefect", *arguments]
            process = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)  # Ctrl-C is ours
            stack.callback(_end, process)
            return process

        server = start("server", "start", "--host", _HOST, "--port", str(port))
        _wait_for(server, f"{env['PREFECT_API_URL']}/health", home / "serve.log", stop)
        if not stop.is_set():
            _prefect(env, "work-pool", "create", POOL, "--type", "process", unless="already exists")
            _prefect(env, "--no-prompt", "deploy", "--all")
            worker = start("worker", "start", "--pool", POOL)
            print(f"Prefect is at http://{_HOST}:{port} with a worker for the pool {POOL}; Ctrl-C ends both", flush=True)
            while not stop.wait(0.5):
                for name, process in (("server", server), ("worker", worker)):
                    if process.poll() is not None:
                        raise UserError(f"the Prefect {name} ended with code {process.returncode}: see {home / 'serve.log'}")
            print("ending the worker, its runs and the server; what was finished is kept", flush=True)


def _wait_for(server: "subprocess.Popen[bytes]", url: str, log: Path, stop: threading.Event) -> None:
    deadline = time.monotonic() + _STARTS
    while not stop.wait(0.2):
        try:
            urllib.request.urlopen(url, timeout=1).close()
            return
        except OSError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise UserError(f"the Prefect server did not start: see {log}") from None


def _prefect(env: dict[str, str], *arguments: str, unless: str = "") -> None:
    """Run a command of Prefect's to its end; a failure whose text holds ``unless`` is none."""
    command = [sys.executable, "-m", "prefect", *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, start_new_session=True)
    said = done.stdout + done.stderr
    if done.returncode and not (unless and unless in said):
        raise UserError(f"`prefect {' '.join(arguments)}` failed: {' '.join(said.split())[-500:]}")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Ask a process to end, and wait a while."""
    process.terminate()
    try:
        process.wait(_ENDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main() -> int:
    """Serve until Ctrl-C or a SIGTERM; exit code 0, or 2 after one sentence."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    home = Path(os.environ.get("PREFECT_HOME") or ".eyas/prefect").absolute()
    home.mkdir(parents=True, exist_ok=True)
    try:
        serve(home, stop)
    except UserError as error:
        print(f"eyas: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
