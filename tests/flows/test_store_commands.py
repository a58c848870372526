"""The store's commands after a real run: nothing is damaged, nothing needed goes."""

from typing import Any

from artifacts.lineage import Lineage
from artifacts.records import Records
from artifacts.runs import Runs
from artifacts.usage import folder_bytes
from tests.projects import CANARY, Project

Finished = tuple[Project, list[dict[str, Any]]]


def test_a_run_leaves_its_manifest_and_a_sound_store(finished: Finished) -> None:
    project, nodes = finished
    (run,) = Runs(project.store).newest(3)
    assert (run.state, run.name, run.smoke) == ("completed", "test", False)
    assert [(n.stage, n.node, n.key, n.status) for n in run.nodes] == [
        (n["stage"], n["node"], n["key"], n["status"]) for n in nodes
    ]
    assert all(Records(project.store).get(node.stage, node.key or "") for node in run.nodes)
    said = project.eyas("verify", str(project.settings), "--deep")
    assert said.returncode == 0 and "nothing is damaged" in said.stdout, said.stdout + said.stderr


def test_show_leads_from_the_checkpoint_to_the_files(finished: Finished) -> None:
    project, nodes = finished
    said = project.eyas("show", str(project.settings), str(project.blob_of("export", "export"))).stdout
    draft = project.blob_of("training", "draft").name
    assert said.startswith("export ") and f"  draft {draft[:12]}, training" in said and "git commit" in said
    data = project.eyas("show", str(project.settings), draft, "--data").stdout
    for name in ("a.jsonl", "b.jsonl"):
        assert str(project.folder / name) in data
    assert CANARY not in said + data
    reproducible = {r.stage: r.lineage["reproducible"] for rs in Lineage.of(Records(project.store)).makers.values() for r in rs}
    assert {stage for stage, again in reproducible.items() if not again} == {"training"}


def test_gc_keeps_a_run_and_what_is_damaged_alone_is_made_again(project: Project) -> None:
    before = folder_bytes(project.store / "blobs")
    collected = project.eyas("gc", str(project.settings), "--yes", "--keep-runs", "1")
    assert collected.returncode == 0 and collected.stdout.endswith("\n0 bytes freed\n"), collected.stdout + collected.stderr
    assert folder_bytes(project.store / "blobs") == before

    states = project.blob_of("hidden_states", "states", "shard 1/") / "states.safetensors"
    data = states.read_bytes()
    states.unlink()  # it is a hard link into the finished project's store
    states.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert project.eyas("verify", str(project.settings), "--deep", "--repair").returncode == 1
    project.edit("kimi_adapters/trainer.py", "Progress = Callable", "EDITED = 1\nProgress = Callable")
    running = [(n["stage"], n["because"]) for n in project.nodes("plan") if n["status"] == "run"]
    assert [stage for stage, _ in running if stage == "hidden_states"] == ["hidden_states"], running
    assert {stage for stage, _ in running} == {"hidden_states", "training"}
    project.run_until_training()
    assert states.read_bytes() == data
