"""What reruns after which change, and what does not."""

import json
import os
import shutil
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.projects import Project, ran, wait_for, write_corpus
from tests.recorded import record

Finished = tuple[Project, list[dict[str, Any]]]
FOLLOWING = {"training", "acceptance", "export"}


def ask(api: str, path: str, body: dict[str, Any] | None) -> Any:
    """What Prefect's API answers."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{api}/{path}", data, {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=30))


def newest_run(api: str) -> str:
    """The id of the newest flow run."""
    return str(ask(api, "flow_runs/filter", {"sort": "START_TIME_DESC", "limit": 1})[0]["id"])


def own_log_lines(api: str) -> list[str]:
    """Our own lines in the newest flow run's log, as the UI shows them."""
    lines = ask(api, "logs/filter", {"logs": {"flow_run_id": {"any_": [newest_run(api)]}}, "limit": 200})
    return [line["message"] for line in lines if line["name"].split(".")[0] == "eyas"]


def task_states(api: str) -> dict[str, list[str]]:
    """State names of the newest flow run's task runs, by task run name."""
    tasks = ask(api, "task_runs/filter", {"flow_runs": {"id": {"any_": [newest_run(api)]}}})
    states: dict[str, list[str]] = {}
    for task in tasks:
        states.setdefault(task["name"], []).append(task["state"]["name"])
    return states


def test_the_first_run_makes_everything(finished: Finished) -> None:
    project, nodes = finished
    assert {node["status"] for node in nodes} == {"run"}
    assert all(node["seconds"] > 0 and len(node["digest"]) >= 64 for node in nodes)
    assert sum(node["stage"] == "hidden_states" for node in nodes) >= 4
    assert not project.children()


def test_a_second_run_hits_every_node_and_prefect_shows_it_cached(project: Project, prefect_api: str) -> None:
    nodes = project.nodes("run")
    assert {node["status"] for node in nodes} == {"hit"}
    states = wait_for(lambda: (s := task_states(prefect_api)) and len(s) == len(nodes) and s)
    assert {state for found in states.values() for state in found} == {"Cached"}
    assert any(name.startswith("hidden states · shard 1/") for name in states)
    assert {node["status"] for node in project.nodes("plan")} == {"hit"}
    assert wait_for(lambda: own_log_lines(prefect_api)) == [f"plan: {len(nodes)} hit, 0 run, 0 may run"]


def test_many_hits_of_a_map_are_one_cached_task(fresh: Project, prefect_api: str) -> None:
    fresh.edit("settings.yaml", "  - b.jsonl\n", "")
    record(fresh, shards=60)
    nodes = fresh.nodes("run")
    assert {node["status"] for node in nodes} == {"hit"}
    assert sum(node["stage"] == "hidden_states" for node in nodes) == 60
    states = wait_for(lambda: (s := task_states(prefect_api)) and "export · vllm" in s and s)
    assert {state for found in states.values() for state in found} == {"Cached"}
    assert {"hidden states · 60 of 60 hit", "validation · 60 of 60 hit", "validation · report"} <= set(states)
    assert len(states) < 12


def test_a_mask_fix_extracts_nothing(project: Project) -> None:
    project.edit("kimi_adapters/chat_masks.py", "[0] < position", "[0] <= position")
    plan = project.nodes("plan")
    assert ran(plan) == {"corpus"}
    assert all(node["because"] == ["module kimi_adapters.chat_masks"] for node in plan if node["stage"] == "corpus")
    counts = {stage: len(project.records(stage)) for stage in ("corpus", "hidden_states", "validation", "vocabulary")}
    project.run_until_training()
    more = {stage: len(project.records(stage)) - count for stage, count in counts.items()}
    assert more["hidden_states"] == 0 and all(more[stage] > 0 for stage in ("corpus", "validation", "vocabulary"))


def test_a_new_file_runs_its_shards_and_an_appended_one_its_last(project: Project) -> None:
    before = {path.name: json.loads(path.read_text()) for path in project.records("hidden_states")}
    last = sum(record["node"].endswith(" of a") for record in before.values())
    write_corpus(project.folder / "a.jsonl", ["sails", "mud"], start=100)
    write_corpus(project.folder / "c.jsonl", ["pens", "hats", "soil"], start=200)
    project.edit("settings.yaml", "- b.jsonl", "- b.jsonl\n  - c.jsonl")
    project.run_until_training()
    new = [json.loads(path.read_text())["node"] for path in project.records("hidden_states") if path.name not in before]
    numbers = sorted(int(name.removeprefix("shard ").partition("/")[0]) for name in new if name.endswith(" of a"))
    assert numbers in ([last], [last, last + 1]), "the appended file's last shard and what did not fit into it"
    assert [name for name in new if name.endswith(" of c")] == ["shard 1/1 of c"]
    assert not any(name.endswith(" of b") for name in new)


def test_an_edit_two_imports_from_the_trainer_reruns_what_follows_it(project: Project, finished: Finished) -> None:
    """And an intermediate that was collected is made again when the edit needs it, it alone; before, it wakes nothing.
    An edit during that run belongs to the next."""
    shutil.rmtree(project.blob_of("hidden_states", "states", "shard 1/"))
    assert {node["status"] for node in project.nodes("plan")} == {"hit"}
    project.edit("kimi_adapters/packing.py", "PCG64([self.seed, epoch])", "PCG64([self.seed, epoch, 1])")
    project.edit("kimi_adapters/training_choices.py", '"dtype": ', '"edited": "yes", "dtype": ')
    plan = project.nodes("plan")
    assert ran(plan) == {"training", "hidden_states"}
    run = project.start()
    wait_for(lambda: any((project.folder / "state/work").glob("*")) and project.children(), process=run)
    project.edit("kimi_adapters/training_choices.py", '"edited": "yes"', '"edited": "again"')
    output, errors = run.communicate(timeout=400)
    assert run.returncode == 0, errors[-3000:]
    nodes = json.loads(output)
    training = next(node for node in nodes if node["stage"] == "training")
    assert training["because"] == ["module kimi_adapters.packing", "module kimi_adapters.training_choices"]
    again = [node for node in nodes if node["stage"] == "hidden_states" and node["status"] == "run"]
    assert len(again) == 1 and again[0]["because"][0].startswith("blob of hidden_states")
    same = {node["node"]: node["digest"] for node in finished[1] if node["stage"] == "hidden_states"}
    assert again[0]["digest"] == same[again[0]["node"]]
    assert ran(nodes) == {"hidden_states"} | FOLLOWING
    plan = project.nodes("plan")
    assert ran(plan) == {"training"}
    assert next(n["because"] for n in plan if n["stage"] == "training") == ["module kimi_adapters.training_choices"]
    project.edit("kimi_adapters/training_choices.py", '"edited": "again"', '"edited": "yes"')
    assert {node["status"] for node in project.nodes("plan")} == {"hit"}


def test_comments_docstrings_formatting_and_retries_rerun_nothing(project: Project) -> None:
    for file in ("tasks/training.py", "tasks/hidden_states.py", "kimi_adapters/trainer.py", "kimi_adapters/llama.py"):
        path = project.folder / file
        path.write_text(path.read_text() + "\n\n\n# a remark\n")
    project.edit("tasks/hidden_states.py", "gathers=True", "retries=4, gathers=True")
    project.edit("kimi_adapters/training_loop.py", '"""Runs a recipe over packs.', '"""Trains, in other words.')
    project.edit("kimi_adapters/packing.py", "OPEN_PACKS = 32", "OPEN_PACKS = (\n    32\n)")
    assert {node["status"] for node in project.nodes("plan")} == {"hit"}


def test_extraction_edited_with_equal_bytes_reruns_extraction_alone(project: Project, finished: Finished) -> None:
    project.edit("kimi_adapters/transport.py", "\nTOKEN_CHUNK", "\nUNUSED = 1\nTOKEN_CHUNK")
    plan = project.nodes("plan")
    assert ran(plan) == {"hidden_states"}
    nodes = project.nodes("run")
    assert ran(nodes) == {"hidden_states"}

    def digests(nodes: list[dict[str, Any]]) -> list[str]:
        return [node["digest"] for node in nodes if node["stage"] == "hidden_states"]

    assert digests(nodes) == digests(finished[1])


def test_a_readme_in_the_verifier_or_its_move_reruns_nothing(project: Project, cut_verifier: Path) -> None:
    moved = project.folder / "moved verifier"
    shutil.copytree(cut_verifier, moved, copy_function=os.link)
    (moved / "README.md").write_text("Edited.")
    arguments = ["--set", f"verifier.directory={moved}", "--set", f"verifier.name={cut_verifier.name}"]
    assert {node["status"] for node in project.nodes("plan", *arguments)} == {"hit"}


def test_a_key_that_cannot_be_computed_stops_the_flow(project: Project, prefect_api: str) -> None:
    project.edit(
        "kimi_adapters/training_choices.py",
        "import torch\n",
        "import importlib\nimport torch\nimportlib.import_module('js' + 'on')\n",
    )
    before = {path.name for path in (project.store / "records").glob("*/*.json")}
    program = (
        "from running.settings_file import load_settings; from pathlib import Path; from flows.served import train_draft_flow;"
        f"train_draft_flow(load_settings(Path({str(project.settings)!r}), []))"
    )
    done = project.python(program)
    assert done.returncode != 0 and "imports a module by a computed name" in done.stderr
    assert task_states(prefect_api) == {}, "nothing may be submitted"
    assert {path.name for path in (project.store / "records").glob("*/*.json")} == before
    short = project.eyas("run", str(project.settings))
    assert short.returncode == 1 and len(short.stderr.strip().splitlines()) == 1


def test_a_missing_final_output_is_made_again_alone(project: Project) -> None:
    shutil.rmtree(project.blob_of("export", "export"))
    nodes = project.nodes("run")
    assert ran(nodes) == {"export"}
    assert project.blob_of("export", "export").is_dir()


def test_a_lost_draft_stops_the_flow_when_it_is_needed(project: Project) -> None:
    shutil.rmtree(project.blob_of("training", "draft"))
    assert {node["status"] for node in project.nodes("plan")} == {"hit"}
    shutil.rmtree(project.blob_of("export", "export"))
    done = project.eyas("run", str(project.settings))
    assert done.returncode == 2 and "cannot make it again bit for bit" in done.stderr


@pytest.mark.parametrize("setting", ["training.lr=0.0005", "acceptance.k=2"])
def test_a_setting_reruns_its_stage(project: Project, setting: str) -> None:
    stage = setting.partition(".")[0]
    plan = project.nodes("plan", "--set", setting)
    assert ran(plan) >= {stage} and ran(plan) <= FOLLOWING
    assert any(setting.partition("=")[0] in reason for node in plan for reason in node["because"])
