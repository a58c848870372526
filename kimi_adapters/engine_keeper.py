"""Keeps a server no longer than whoever wants it: ``python -I -S engine_keeper.py PATIENCE COMMAND…``.

Standard input is a pipe that the starter holds. When it closes, since the starter is done or was killed, the server is asked to
end, and after ``PATIENCE`` seconds its process group is killed, engines in processes of their own included; when the keeper is
killed itself, at once. Standard library only: it runs as a script.
"""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress


def keep(command: list[str], patience: float) -> int:
    """Run ``command`` until it ends or standard input closes; its exit code."""
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    done = _second_keeper(server.pid)

    def watch() -> None:
        while os.read(0, 1):
            pass
        with suppress(ProcessLookupError):
            os.kill(server.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            server.wait(patience)
        _kill_group(server.pid)

    threading.Thread(target=watch, daemon=True).start()
    code = server.wait()
    _kill_group(server.pid)  # what it started may live on
    os.write(done, b".")
    return code


def _second_keeper(group: int) -> int:
    """A process that kills a process group when this one dies. It ends once something is written to what is returned."""
    reading, writing = os.pipe()
    if os.fork():
        os.close(reading)
        return writing
    os.setsid()  # whoever kills the keeper's group does not kill it
    os.close(writing)
    if not os.read(reading, 1):
        _kill_group(group)
    os._exit(0)


def _kill_group(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(abs(keep(sys.argv[2:], float(sys.argv[1]))))
