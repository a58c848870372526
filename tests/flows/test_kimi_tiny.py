"""A checkpoint in Kimi-K2.5's published layout through the whole flow on a CPU."""

import json
from typing import Any

import pytest

from kimi_adapters.tiny_checkpoint import Options, make
from tests.flows.test_cache import own_log_lines
from tests.projects import ROOT, Project, wait_for

LEFT_OUT = "6 tensors are not the text model's and are left out: mm_projector (2), vision_tower (4)"


@pytest.fixture
def kimi(fresh: Project) -> Project:
    """A project with the settings that ship for the tiny checkpoint."""
    make(fresh.folder / ".eyas" / "kimi-tiny", Options())
    settings = (ROOT / "deployments" / "kimi_tiny.yaml").read_text()
    settings = settings.replace("deployments/", f"{ROOT}/deployments/") + "store: {path: store, state: state}\n"
    fresh.settings.write_text(settings)
    return fresh


def test_the_whole_flow(kimi: Project, prefect_api: str) -> None:
    done = kimi.eyas("run", str(kimi.settings), "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    nodes = json.loads(done.stdout)
    assert {node["status"] for node in nodes} == {"run"}
    stages = "corpus hidden_states validation vocabulary training acceptance export"
    assert {node["stage"] for node in nodes} == set(stages.split())
    assert [node["node"] for node in nodes if node["stage"] == "acceptance"] == ["replay"], "it does not decode here"
    assert done.stderr.count(LEFT_OUT) == 1 and wait_for(lambda: any(LEFT_OUT in line for line in own_log_lines(prefect_api)))
    assert {node["status"] for node in kimi.nodes("plan")} == {"hit"}
    _nothing_is_rejected(kimi)


def _nothing_is_rejected(kimi: Project) -> None:
    """Nothing that ships is a reject: tools, calls, results, thinking, system and several turns are all written."""
    (path,) = kimi.records("corpus")
    facts: dict[str, Any] = json.loads(path.read_text())["outputs"]["rejects"]["facts"]
    assert facts["rows"] == facts["conversations"] == 160 and facts["rejects"] == facts["duplicates"] == 0


@pytest.mark.parametrize("section", ["data", "acceptance"])
def test_prompts_are_refused_before_work_starts(kimi: Project, section: str) -> None:
    value = "prompts.jsonl" if section == "acceptance" else "[prompts.jsonl]"
    done = kimi.eyas("run", str(kimi.settings), "--set", f"{section}.prompts={value}")
    assert done.returncode == 2 and f"{section}.prompts is set" in done.stderr and "does not decode here" in done.stderr
    assert not kimi.records("corpus")
