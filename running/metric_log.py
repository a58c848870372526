"""Metrics of a training on their way to TensorBoard and Weights & Biases: each logger is a process of its own.

A logger that is slow, hangs or dies loses lines and disturbs nothing: the run never waits for one.
"""

import json
import logging
import os
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from errors import UserError
from running.job import json_line
from running.snapshot import project_root

log = logging.getLogger("eyas")
METRICS = "metrics"  # the folder of a run that loggers write to
_PATIENCE = 60.0  # seconds that a logger has for its last lines; a short training ends before it has imported


def check_loggers(loggers: list[str]) -> None:
    """Refuse a logger whose package is not installed."""
    for name in loggers:
        if find_spec(name) is None:
            raise UserError(f"running.loggers names {name}, and that package is not installed: pip install 'eyas[{name}]'")


class MetricLog:
    """The loggers of one run. Their files lie in ``folder``, theirs by name; none starts before there is something to log."""

    def __init__(self, loggers: list[str], folder: Path, name: str) -> None:
        self._loggers, self._folder, self._name = loggers, folder, name
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in self._processes.values():
            assert process.stdin
            with suppress(OSError):
                process.stdin.close()
        for name, process in self._processes.items():
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                log.warning("%s did not end and was killed; its last lines may be missing", name)
                process.kill()
                process.wait()

    def send(self, event: dict[str, Any]) -> None:
        """Hand on a ``metrics`` event."""
        line = json_line({"step": event["step"], "values": event["values"]})
        for name in list(self._loggers):
            try:
                process = self._processes.get(name) or self._start(name)
                assert process.stdin
                os.write(process.stdin.fileno(), line)  # shorter than a pipe's atomic 4,096 bytes: whole or not at all
            except BlockingIOError:
                continue  # it is behind by 64 KB of lines
            except OSError as error:
                self._loggers = [one for one in self._loggers if one != name]
                log.warning("%s takes no more metrics (%s); the run goes on (its log: %s)", name, error, self._log_of(name))

    def _log_of(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _start(self, name: str) -> "subprocess.Popen[bytes]":
        self._folder.mkdir(parents=True, exist_ok=True)
        target = self._folder / name
        target.mkdir(exist_ok=True)
        environment = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPATH": os.pathsep.join([str(project_root()), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "WANDB_DIR": str(target),
            "WANDB_PROJECT": os.environ.get("WANDB_PROJECT", "eyas"),
        }
        with open(self._log_of(name), "wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "running.metric_process", json.dumps([name, self._name, str(target)])],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        assert process.stdin
        os.set_blocking(process.stdin.fileno(), False)
        self._processes[name] = process
        log.info("metrics go to %s, in %s", name, target)
        return process
