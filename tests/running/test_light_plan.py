"""A plan needs neither Prefect nor torch, and the flow's process no torch: else a plan would take ten seconds, not one."""

import json
from pathlib import Path

import pytest

from tests.projects import Project, copy_checkout, make_project
from tests.recorded import record

HEAVY = ("torch", "transformers", "speculators", "matplotlib", "pyarrow")
PLAN = "import json, sys; from running.cli import main; main(['plan', 'settings.yaml']); print(json.dumps(list(sys.modules)))"
FLOW = "import json, sys; import flows.served; print(json.dumps(list(sys.modules)))"


@pytest.fixture
def project(tmp_path: Path, cut_verifier: Path) -> Project:
    """A project of one source."""
    copy_checkout(tmp_path / "checkout")
    project = make_project(tmp_path / "project", tmp_path / "checkout", cut_verifier, "http://127.0.0.1:1/api")
    project.edit("settings.yaml", "  - b.jsonl\n", "")
    return project


def modules(project: Project, program: str) -> set[str]:
    """Every module that a process has imported at its end."""
    done = project.python(program)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_a_plan_imports_nothing_heavy(project: Project) -> None:
    assert not modules(project, PLAN) & {"prefect", *HEAVY}, "of a first run"
    record(project, shards=3)
    assert not modules(project, PLAN) & {"prefect", *HEAVY}, "of a run that hits"


def test_the_flows_process_imports_no_torch(project: Project) -> None:
    found = modules(project, FLOW)
    assert "prefect" in found and not found & set(HEAVY)
