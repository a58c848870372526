"""`make serve` in a project of its own: its server, its worker, its deployments, and what its API is asked."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.projects import ROOT, Project, make_project, wait_for

ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
WHY = "no room for the export: make some"  # what a broken export says
_EXPORT, _LINE = "tasks/export.py", "    engine, dtype, name = (job.settings[key]"
_BROKEN, _MENDED = f'    raise UserError("{WHY}")\n', "    assert job.settings\n"


@dataclass
class Served:
    """A project with `make serve` running in it."""

    project: Project
    process: "subprocess.Popen[str]"
    address: str

    def ask(self, path: str, body: dict[str, Any] | None = None, method: str = "POST") -> Any:
        """What the API answers; asked again while its database is locked."""
        headers = {"Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.address}/api/{path}", data, headers, method=method)

        def answered() -> Any:
            try:
                with urllib.request.urlopen(request, timeout=300) as answer:
                    return [json.loads(answer.read() or "null")]
            except urllib.error.HTTPError as error:
                if error.code != 503:
                    raise
                time.sleep(1.0)

        return wait_for(answered, 300, self.process)[0]

    def deployment(self, name: str) -> dict[str, Any]:
        """A deployment by its name."""
        (found,) = self.ask("deployments/filter", {"deployments": {"name": {"any_": [name]}}})
        return dict(found)

    def start(self, name: str, **changes: Any) -> str:
        """Start a deployment with its settings, of which ``changes`` replace sections; the run's id."""
        found = self.deployment(name)
        settings = {**found["parameters"]["settings"], **changes}
        run = self.ask(f"deployments/{found['id']}/create_flow_run", {"parameters": {"settings": settings}})
        return str(run["id"])

    def state(self, run: str) -> dict[str, Any]:
        """The state of a run."""
        return dict(self.ask(f"flow_runs/{run}", method="GET")["state"])

    def retry(self, run: str) -> None:
        """Retry a run by Prefect's own command."""
        command = [sys.executable, "-m", "prefect", "flow-run", "retry", run]
        environment = {**self.project.environment, "PREFECT_API_URL": f"{self.address}/api"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    def resume(self, run: str, **given: Any) -> None:
        """What the UI's Resume does with its form."""
        body = {"prefix": "", "limit": 9, "exclude_keys": []}
        wait_for(lambda: self.ask(f"flow_runs/{run}/input/filter", body), 60)
        answer = self.ask(f"flow_runs/{run}/resume", {"run_input": given})
        assert answer["status"] == "ACCEPT", answer

    def tasks(self, run: str) -> list[tuple[str, str]]:
        """Name and state of each task run of a run; "" for one that was told of before its state was."""
        body = {"task_runs": {"flow_run_id": {"any_": [run]}}, "sort": "END_TIME_DESC"}
        return [(task["name"], (task["state"] or {"name": ""})["name"]) for task in self.ask("task_runs/filter", body)]

    def made(self) -> dict[str, int]:
        """How many nodes of each stage have been made."""
        return {stage.name: len(self.project.records(stage.name)) for stage in (self.project.store / "records").iterdir()}

    def wait_for_state(self, run: str, *types: str, seconds: float = 900) -> dict[str, Any]:
        """A run's state as soon as its type is one of those."""
        return dict(self._asking(lambda: (s := self.state(run))["type"] in types and s, seconds))

    def _asking(self, what: Callable[[], Any], seconds: float) -> Any:
        """``wait_for``, some times a second: more questions would take a processor from the run that is waited for."""

        def asked() -> Any:
            time.sleep(0.25)
            return what()

        return wait_for(asked, seconds, self.process)

    def ended(self, name: str) -> dict[str, Any]:
        """The newest run of a deployment, when it has ended."""

        def newest() -> Any:
            body = {"deployments": {"name": {"any_": [name]}}, "flow_runs": {"state": {"type": {"any_": list(ENDED)}}}}
            found = self.ask("flow_runs/filter", {**body, "sort": "START_TIME_DESC", "limit": 1})
            return found and found[0]

        return dict(self._asking(newest, 600))


def break_export(project: Project) -> None:
    """Export fails from now on."""
    project.edit(_EXPORT, _LINE, _BROKEN + _LINE)


def mend_export(project: Project) -> None:
    """Export works again, by other code than at first."""
    project.edit(_EXPORT, _BROKEN, _MENDED)


def write_deployments(project: Project, settings_of: Callable[[str], dict[str, Any]]) -> None:
    """The repository's own prefect.yaml in the project, with the settings that ``settings_of`` gives for each deployment."""
    whole = yaml.safe_load((ROOT / "prefect.yaml").read_text())
    for one in whole["deployments"]:
        one["parameters"]["settings"] = settings_of(one["name"])
    (project.folder / "prefect.yaml").write_text(yaml.safe_dump(whole))


@contextmanager
def taken(port: int) -> Iterator[None]:
    """A port that others find in use."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):  # it is in use as it is
            holder.bind(("127.0.0.1", port))
            holder.listen()
        yield


@contextmanager
def serving(
    folder: Path, checkout: Path, verifier: Path, settings_of: Callable[[str, dict[str, Any]], dict[str, Any]]
) -> Iterator[Served]:
    """Serve a fresh project in ``folder``, on another port than Prefect's own; a deployment's settings are made from its name
    and the project's."""
    project = make_project(folder, checkout, verifier, "")
    settings = yaml.safe_load(project.settings.read_text())
    write_deployments(project, lambda name: settings_of(name, settings))
    del project.environment["PREFECT_API_URL"]
    with started(project) as served:
        yield served


@contextmanager
def started(project: Project) -> Iterator[Served]:
    """``make serve``'s program in a project, from when it has said that all is there to its Ctrl-C."""
    with taken(4200):
        served = _start(project)
    try:
        yield served
    finally:
        if served.process.poll() is None:
            os.kill(served.process.pid, signal.SIGINT)
            served.process.wait(60)


def _start(project: Project) -> Served:
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "running.serve"],
        cwd=project.folder,
        env=project.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("Prefect is at http://"), line
    return Served(project, process, line.split()[3])
