"""``make serve``: a Prefect server, the work pool, a worker and the deployments of this folder, until Ctrl-C.

Everything that it starts ends with it, runs in progress included: what they finished is kept. A worker that is killed is
replaced, and its runs are told as crashed. Prefect's database lies in ``.eyas/prefect`` unless PREFECT_HOME says otherwise.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from artifacts.disk import locked
from errors import UserError
from running.leftovers import MARK, WORK, end, leave_nothing_behind
from running.lost_runs import WORKER, crash_lost_runs

POOL = "eyas"
Process = subprocess.Popen[bytes]
_HOST, _PORT = "127.0.0.1", 4200
_STARTS, _ENDS = 600.0, 10.0  # seconds
_LIVES = 10.0  # seconds; a worker that ends sooner would end again


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
        stack.callback(end, f"{MARK}={os.environ[MARK]}")
        port = free_port()
        env = environment(home, port)
        log = stack.enter_context(open(home / "serve.log", "ab"))

        def start(*arguments: str, **marks: str) -> Process:
            command = [sys.executable, "-m", "prefect", *arguments]
            process = subprocess.Popen(  # Ctrl-C is ours
                command, env={**env, **marks}, stdout=log, stderr=log, start_new_session=True
            )
            stack.callback(_end, process)
            return process

        server = start("server", "start", "--host", _HOST, "--port", str(port))
        _wait_for(server, f"{env['PREFECT_API_URL']}/health", home / "serve.log", stop)
        if not stop.is_set():
            _prefect(env, "work-pool", "create", POOL, "--type", "process", unless="already exists")
            _prefect(env, "--no-prompt", "deploy", "--all")
            _work(start, server, env["PREFECT_API_URL"], home / "serve.log", stop)
            print("ending the worker, its runs and the server; what was finished is kept", flush=True)


def _work(start: Callable[..., Process], server: Process, api: str, log: Path, stop: threading.Event) -> None:
    """Keep a worker at work until ``stop``; of one that was killed nothing goes on, and another takes its place."""
    told = f"Prefect is at {api.removesuffix('/api')} with a worker for the pool {POOL}; Ctrl-C ends both"
    while not stop.is_set():
        for name in crash_lost_runs(api):
            print(f"the run {name} lost its worker and has crashed: Retry goes on from what it finished", flush=True)
        mark, began = uuid.uuid4().hex, time.monotonic()
        worker = start("worker", "start", "--pool", POOL, "--name", WORKER + mark, **{WORK: mark})
        print(told, flush=True)
        while not stop.wait(0.5) and worker.poll() is None:
            if server.poll() is not None:
                raise UserError(f"the Prefect server ended with code {server.returncode}: see {log}")
        if worker.returncode is not None:
            if time.monotonic() - began < _LIVES:
                raise UserError(f"the Prefect worker ended with code {worker.returncode}: see {log}")
            told = f"the worker ended with code {worker.returncode} (see {log}), and another one is in its place"
            end(f"{WORK}={mark}")


def _wait_for(server: Process, url: str, log: Path, stop: threading.Event) -> None:
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


def _end(process: Process) -> None:
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
