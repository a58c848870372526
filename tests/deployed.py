"""Runs of deployments without a worker: made as the form in the UI makes them, executed here, resumed as its button does."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tasks.settings import Settings
from tests.projects import Project, wait_for


def deployed_run(api: Any, flow: str, entrypoint: str, folder: Path, settings: Settings) -> Any:
    """A run of a flow's deployment with the code of ``folder``."""
    where = [{"prefect.deployments.steps.set_working_directory": {"directory": str(folder)}}]
    name = f"{flow}-{folder.parent.name}"
    deployment = api.create_deployment(api.create_flow_from_name(flow), name, entrypoint=entrypoint, pull_steps=where)
    parameters = {"settings": settings.model_dump(mode="json", exclude_unset=True)}
    return api.create_flow_run_from_deployment(deployment, parameters=parameters)


def execute(project: Project, run: Any) -> "subprocess.Popen[bytes]":
    """Do what a worker does with a run; what it says is in the project's ``executed.log``."""
    command = [sys.executable, "-m", "prefect", "flow-run", "execute", str(run.id)]
    environment = {**project.environment, "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    with open(project.folder / "executed.log", "wb") as log:
        return subprocess.Popen(command, cwd=os.sep, env=environment, stdout=log, stderr=subprocess.STDOUT)


def said(project: Project) -> str:
    """The end of what the run that was executed last has said."""
    return (project.folder / "executed.log").read_text()[-3000:]


def state_of(api: Any, run: Any) -> Any:
    """The state of a run."""
    return api.read_flow_run(run.id).state


def resume(api: Any, run: Any, state: str, **given: Any) -> None:
    """When a run is ``Paused`` or ``Suspended``: what the UI's button does with its form."""
    wait_for(lambda: state_of(api, run).name == state)
    wait_for(lambda: api.filter_flow_run_input(run.id, key_prefix=state.lower(), limit=9, exclude_keys=set()))
    answer = api.resume_flow_run(run.id, run_input=given)
    assert answer.status.value == "ACCEPT", answer
