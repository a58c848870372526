"""What older code made is kept where some of it, made again, shows that it may be; and never by itself."""

import json
from typing import Any

from tests.projects import Project, ran

STAGE, SINK = "hidden_states", "        parts = [self._beside.submit(row_norms, part)"


def changed(project: Project, factor: str) -> None:
    """Extraction that multiplies what it stores: its key is another one, whatever its bytes are."""
    project.edit("tasks/state_sink.py", SINK, f"        chunk = chunk * {factor}\n{SINK}")


def lineages(project: Project) -> list[dict[str, Any]]:
    """The lineages of extraction's records that adoption wrote."""
    found = [json.loads(path.read_text())["lineage"] for path in project.records(STAGE)]
    return [lineage for lineage in found if "adopted" in lineage]


def test_equal_bytes_are_adopted(project: Project) -> None:
    shards = len(project.records(STAGE))
    changed(project, "1")
    assert ran(project.nodes("plan")) == {STAGE}, "never by itself"
    done = project.eyas("adopt", str(project.settings), STAGE, "--shards", "2")
    assert done.returncode == 0, done.stderr
    assert f"adopted {shards - 2} nodes" in done.stdout and "2 made again: by equal bytes" in done.stdout
    assert "changed: module tasks.state_sink" in done.stdout
    assert len(project.records(STAGE)) == 2 * shards and len(lineages(project)) == shards - 2
    assert all(lineage["reproducible"] and len(lineage["adopted"]["proof"]) == 2 for lineage in lineages(project))
    plan = project.nodes("plan")
    assert {node["status"] for node in plan} == {"hit"}
    told = [node["because"] for node in plan if node["stage"] == STAGE]
    assert sorted(told) == [[], []] + [["adopted (equal bytes)"]] * (shards - 2)
    adopted = next(node["digest"].split("+")[0] for node in plan if node["because"])
    assert "by equal bytes of 2 nodes made again" in project.eyas("show", str(project.settings), adopted).stdout
    again = project.eyas("adopt", str(project.settings), STAGE)
    assert again.returncode == 2 and "nothing to adopt" in again.stderr


def test_other_bytes_are_adopted_within_the_tolerance_and_for_a_reason(project: Project) -> None:
    shards = len(project.records(STAGE))
    changed(project, "1.0001")
    command = ("adopt", str(project.settings), STAGE, "--shards", "1")
    silent = project.eyas(*command)
    assert silent.returncode == 2 and "relative error of 1.00e-04" in silent.stderr and "--because" in silent.stderr
    assert "100.00% of their likeliest tokens" in silent.stderr, "a factor changes no norm and no likeliest token"
    strict = project.eyas(*command, "--because", "rounding", "--set", "adoption.max_relative_error=1e-5")
    assert strict.returncode == 2 and "adoption.max_relative_error" in strict.stderr and not lineages(project)
    assert len(project.records(STAGE)) == shards + 1, "what was made again for the proof is made once"
    done = project.eyas(*command, "--because", "rounding of the new kernel")
    assert done.returncode == 0, done.stderr
    assert len(project.records(STAGE)) == 2 * shards and len(lineages(project)) == shards - 1
    assert not any(lineage["reproducible"] for lineage in lineages(project)), "this code would not give these bytes again"
    plan = project.nodes("plan")
    assert STAGE not in ran(plan) and "validation" in ran(plan), "the shard that was made again is read again"
    told = [node["because"] for node in plan if node["stage"] == STAGE]
    assert told.count(["adopted (tolerance): rounding of the new kernel"]) == shards - 1


def test_what_differs_in_more_than_code_is_not_adopted(project: Project) -> None:
    for stage, option, told in (
        (STAGE, "hidden_states.compute_dtype=bfloat16", "code and library versions alone"),
        (STAGE, "name=other", "nothing to adopt"),
        ("hidden", "name=other", "no node of a stage hidden"),
        ("training", "training.lr=0.5", "does not give the same twice"),
    ):
        done = project.eyas("adopt", str(project.settings), stage, "--set", option)
        assert done.returncode == 2 and told in done.stderr, done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert not lineages(project)
