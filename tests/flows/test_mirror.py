"""A second machine with an empty disk goes on from the mirror, and runs only what is missing."""

import json
import shutil
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.projects import Project, make_project, ran, wait_for
from tests.servers import free_port

Finished = tuple[Project, list[dict[str, Any]]]
FOLLOWING = {"training", "acceptance", "export"}
TRAINER_EDIT = ("kimi_adapters/packing.py", "PCG64([self.seed, epoch])", "PCG64([self.seed, epoch, 1])")


@pytest.fixture(scope="module")
def machine(
    s3: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
    checkout: Path,
    finished: Finished,
    cut_verifier: Path,
    prefect_api: str,
) -> Any:
    """Makes machines: checkouts with an empty store, whose settings name a mirror."""

    def make(mirror: str) -> Project:
        project = make_project(tmp_path_factory.mktemp("machine") / "project", checkout, cut_verifier, prefect_api)
        project.edit("settings.yaml", "  path: store", f"  mirror: {mirror}\n  path: store")
        return replace(project, environment={**project.environment, **s3})

    return make


@pytest.fixture(scope="module")
def pushed(machine: Any, finished: Finished) -> str:
    """A mirror that machine one has filled by ``eyas push``, with what it had made before the mirror was set."""
    uri = f"s3://bucket/{uuid.uuid4().hex}"
    one = machine(uri)
    one.take_store_of(finished[0])
    done = one.eyas("push", str(one.settings))
    assert done.returncode == 0, done.stderr
    assert f"{len(finished[1])} nodes given, 0 not" in done.stderr
    again = one.eyas("push", str(one.settings))
    assert f"{len(finished[1])} of {len(finished[1])} nodes were there" in again.stderr
    return uri


def blobs(project: Project) -> set[str]:
    return {path.parent.name for path in (project.store / "blobs").glob("*/*/manifest.json")}


def digests(project: Project, stage: str, *names: str) -> set[str]:
    """Digests of a stage's outputs whose names begin with one of ``names``."""
    outputs = [json.loads(path.read_text())["outputs"] for path in project.records(stage)]
    return {ref["digest"] for each in outputs for name, ref in each.items() if name.startswith(names)}


def bucket(uri: str) -> Any:
    import s3fs

    fs = s3fs.S3FileSystem(use_listings_cache=False)
    return fs, uri.removeprefix("s3://")


def test_a_second_machine_plans_hits_and_brings_only_what_training_reads(machine: Any, pushed: str, finished: Finished) -> None:
    two = machine(pushed)
    assert {node["status"] for node in two.nodes("plan")} == {"hit"}
    assert blobs(two) == set(), "a plan brings no blob"
    two.edit(*TRAINER_EDIT)
    assert ran(two.nodes("plan")) == {"training"}
    assert blobs(two) == set()
    nodes = two.nodes("run")
    assert ran(nodes) == FOLLOWING
    read = digests(two, "corpus", "ids", "masks") | digests(two, "hidden_states", "states")
    read |= digests(two, "validation", "quarantine") | digests(two, "vocabulary", "vocabulary")
    made = {output for stage in FOLLOWING for output in digests(two, stage, "")}
    assert blobs(two) <= read | made and blobs(two) >= read
    fs, root = bucket(pushed)
    there = {path.split("/")[-2] for path in fs.find(f"{root}/blobs") if path.endswith("/manifest.json")}
    assert there >= made & blobs(two), "what the second machine made is there, too, when its run says it is done"
    one = machine(pushed)
    one.edit(*TRAINER_EDIT)
    assert {node["status"] for node in one.nodes("plan")} == {"hit"}


def test_damaged_objects_are_said_and_their_producers_run(machine: Any, pushed: str, finished: Finished) -> None:
    fs, root = bucket(pushed)
    fs.copy(f"{root}/", f"{root}-damaged/", recursive=True)
    damaged = [finished[0].blob_of("hidden_states", "states", f"shard {number}/") for number in (1, 2)]
    for blob, change in zip(damaged, ("cut", "flip"), strict=True):
        path = f"{root}-damaged/blobs/{blob.name[:2]}/{blob.name}/{next(blob.glob('*.safetensors')).name}"
        data = bytearray(fs.cat_file(path))
        data[len(data) // 2] ^= 1
        fs.pipe_file(path, bytes(data if change == "flip" else data[:-1]))
    two = machine(f"{pushed}-damaged")
    two.edit("kimi_adapters/packing.py", "PCG64([self.seed, epoch])", "PCG64([self.seed, epoch, 2])")
    run = two.start()
    wait_for(lambda: any(b"training" in line for line in two._lines()), process=run)
    run.kill()
    _, errors = run.communicate()
    warnings = sorted(line for line in errors.splitlines() if "its producer runs again" in line)
    assert len(warnings) == 2, errors
    for blob, why in zip(damaged, ("bytes instead of", "does not have the bytes that its manifest names"), strict=True):
        assert any(blob.name in line and why in line for line in warnings), warnings
        assert blob.name in blobs(two), "made again, with the bytes that were lost"
    assert sum(": done in" in line and "hidden states" in line for line in errors.splitlines()) == 2


def test_an_unreachable_mirror_is_one_warning_and_the_next_run_makes_up_for_it(machine: Any, finished: Finished) -> None:
    three = machine("s3://bucket/anywhere")
    endpoint = three.environment["AWS_ENDPOINT_URL"]
    three.take_store_of(finished[0])
    shutil.rmtree(three.blob_of("export", "export"))
    three.environment["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{free_port()}"
    done = three.eyas("run", str(three.settings), "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    assert ran(json.loads(done.stdout)) == {"export"}
    assert done.stderr.count("cannot be used") == 1, done.stderr
    three.environment["AWS_ENDPOINT_URL"] = endpoint
    done = three.eyas("run", str(three.settings))
    assert f"{len(finished[1])} nodes given, 0 not" in done.stderr, done.stderr
    assert {node["status"] for node in machine("s3://bucket/anywhere").nodes("plan")} == {"hit"}


def test_an_unknown_protocol_is_one_sentence_before_work_starts(machine: Any) -> None:
    for command in ("plan", "run", "push"):
        project = machine("nosuch://bucket")
        project.store.mkdir(exist_ok=True)  # a push asks for it first
        done = project.eyas(command, str(project.settings))
        lines = [line for line in done.stderr.splitlines() if line.startswith("eyas: ")]
        assert done.returncode == 2 and len(lines) == 1 and "the protocol 'nosuch'" in lines[0], done.stderr
        assert not (project.store / "records").exists()
