"""After a conversation was forgotten, the next run makes the shard that held it again, and no other."""

import json
from pathlib import Path

from artifacts.forgotten import id_digest
from tests.projects import Project


def named(project: Project, name: str) -> list[Path]:
    """Files of the store that name a sample's id."""
    return [path for path in project.store.rglob("*.json*") if path.is_file() and f'"{name}"'.encode() in path.read_bytes()]


def test_forgetting_makes_one_shard_again(project: Project) -> None:
    forgotten = next(p for p in (project.blob_of("corpus", "masks.0", "a") / "samples.jsonl").read_text().splitlines()[1:])
    name = json.loads(forgotten)["id"]
    before = {path.name for path in project.records("hidden_states")}
    assert named(project, name)
    said = project.eyas("forget", str(project.settings), name, "--yes")
    assert said.returncode == 0 and "draft    " in said.stdout, said.stdout + said.stderr
    assert named(project, name) == []
    plan = project.nodes("plan")
    rerun = [(node["stage"], node["node"], node["because"]) for node in plan if node["status"] == "run"]
    assert rerun == [("corpus", "a", ["setting corpus.forgotten"])]
    project.run_until_training()
    (new,) = [json.loads(path.read_text()) for path in project.records("hidden_states") if path.name not in before]
    assert new["node"].startswith("shard 1/") and new["node"].endswith(" of a")
    assert named(project, name) == []
    corpora = [json.loads(path.read_text()) for path in project.records("corpus")]
    facts = [one["outputs"]["rejects"]["facts"] for one in corpora if one["node"] == "a"]
    assert sorted(one["forgotten"] for one in facts) == [0, 1]
    listed = json.loads((project.store / "forgotten.json").read_text())["sources"]
    assert [digests for digests in listed.values() if digests] == [[id_digest(name)]]
    assert project.eyas("verify", str(project.settings), "--deep").returncode == 0
