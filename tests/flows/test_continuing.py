"""A training that was cut short goes on under another recipe where that is asked for, and the lineage says so."""

import json
import os
import signal
from typing import Any

from tasks.curves import read_curves
from tasks.formats import CURVES
from tests.flows.test_crash import MARK, checkpoints, mark, slow_training
from tests.projects import Project, no_orphans, ran, wait_for


def continued_record(project: Project) -> dict[str, Any]:
    """The record of the training that went on from another's checkpoint."""
    records: list[dict[str, Any]] = [json.loads(path.read_text()) for path in project.records("training")]
    (found,) = (record for record in records if "continued" in record["lineage"]["inputs"])
    return found


def test_a_training_that_was_cut_goes_on_under_another_recipe(project: Project) -> None:
    slow_training(project)
    run = project.start()
    wait_for(lambda: len(checkpoints(project)) > 1, process=run)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    no_orphans(project)
    *_, whole, torn = checkpoints(project)
    mark(whole)
    torn.write_bytes(torn.read_bytes()[:-1])
    key, step = whole.parents[1].name, int(whole.stem.split("-")[1])

    chosen = ["--set", f"training.continue_from={key[:12]}", "--set", "training.lr=5e-4"]
    done = project.eyas("run", str(project.settings), "--json", *chosen)
    assert done.returncode == 0, done.stderr[-3000:]
    assert ran(json.loads(done.stdout)) == {"training", "acceptance", "export"}
    assert f"{torn} is torn and is passed over" in done.stderr
    assert "training: attention sdpa, loss eager (a fused one needs a GPU)" in done.stderr

    record = continued_record(project)
    assert record["lineage"]["inputs"]["continued"]["path"] == str(whole)
    assert record["parts"]["input continued"] == record["lineage"]["inputs"]["continued"]["digest"]
    assert record["parts"]["setting training.lr"] == "0.0005" and record["key"] != key
    assert record["outputs"]["draft"]["facts"]["continued_at"] == step
    digest = record["outputs"]["curves"]["digest"]
    with open(project.store / "blobs" / digest[:2] / digest / CURVES, "rb") as file:
        curves = read_curves(file)
    assert curves["loss"][0] == MARK, "its first steps are those of the one that was cut"
    rates = [rate for rate in curves["lr"] if rate is not None]
    assert max(rates[step:]) <= 5e-4 < max(rates[:step])
