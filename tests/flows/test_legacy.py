"""A folder of legacy samples through the flow: it joins the other shards, and stands alone."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from kimi_adapters.tensor_file import TensorFile
from tasks.formats import STATES, read_masks, read_tokens, state_rows
from tests.projects import Project, ran


def save_legacy(project: Project, folder: Path) -> int:
    """The samples of the project's shards as v1 files; how many there are."""
    folder.mkdir()
    count = 0
    for path in project.records("hidden_states"):
        record = json.loads(path.read_text())
        blobs = project.store / "blobs"
        digests = record["lineage"]["inputs"]["ids"]["blob"], record["outputs"]["states"]["digest"]
        ids, offsets = read_tokens(blobs / digests[0][:2] / digests[0])
        file = TensorFile(blobs / digests[1][:2] / digests[1] / STATES)
        states = [torch.from_numpy(state_rows(file, name, slice(None))) for name in file.entries]
        for start, stop in zip(offsets[:-1], offsets[1:], strict=True):
            row = torch.from_numpy(ids[start:stop].astype(np.int64))
            mask = torch.zeros_like(row)
            mask[len(row) // 2 :] = 1
            parts = [one[start:stop].contiguous() for one in states]
            torch.save({"input_ids": row, "hidden_states": parts, "loss_mask": mask}, folder / f"data_{count}.pt")
            count += 1
    return count


@pytest.mark.serve  # minutes; tests/tasks/test_legacy.py shows the stage
def test_legacy_samples_join_and_stand_alone(project: Project) -> None:
    count = save_legacy(project, project.folder / "rows")
    joined = ["--set", "data.legacy_states=[rows]"]
    plan = project.nodes("plan", *joined)
    assert {node["status"] for node in plan if node["stage"] == "legacy"} == {"run"}
    alone = [*joined, "--set", "data.conversations=[]", "--set", "acceptance.prompts=", "--set", "training.epochs=1"]
    nodes = project.nodes("run", *alone)
    assert ran(nodes) == {"legacy", "validation", "vocabulary", "training", "acceptance", "export"}
    masks = [project.store / "blobs" / d[:2] / d for d in digests_of_masks(project)]
    assert sum(len(read_masks(folder)[1]) for folder in masks) == count
    assert {node["status"] for node in project.nodes("plan", *alone)} == {"hit"}
    both = project.nodes("plan", *joined)
    assert {node["status"] for node in both if node["stage"] in ("legacy", "corpus", "hidden_states")} == {"hit"}
    assert ran(both) <= {"validation", "vocabulary"}, "what follows them may run"
    (project.folder / "rows" / "data_0.pt").write_bytes(b"no zip")
    done = project.eyas("plan", str(project.settings), *joined)
    assert done.returncode == 2 and "data_0.pt is not a whole file of torch.save" in done.stderr


def digests_of_masks(project: Project) -> list[str]:
    return [json.loads(path.read_text())["outputs"]["masks"]["digest"] for path in project.records("legacy")]
