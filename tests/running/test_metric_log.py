"""Loggers get a training's metrics, and what becomes of them does not reach the run."""

import json
import logging
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from errors import UserError
from running.metric_log import MetricLog, check_loggers
from running.metric_process import serve
from running.settings_file import load_settings
from tests.projects import wait_for


def event(step: int) -> dict[str, Any]:
    return {"event": "metrics", "key": "k", "step": step, "values": {"loss": 1 / step, "lr": 1e-3, "epoch": 0}}


def test_tensorboard_reads_what_was_logged(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    lines = [json.dumps({"step": step, "values": {"loss": 1 / step}}) for step in (1, 2, 4)]
    serve("tensorboard", "draft", str(tmp_path), lines)
    (file,) = tmp_path.rglob("events.out.tfevents.*")
    values = [(one.step, value) for one in EventFileLoader(str(file)).Load() for value in one.summary.value]
    found = [(step, value.tag, value.tensor.float_val[0]) for step, value in values]
    assert found == [(1, "loss", 1.0), (2, "loss", 0.5), (4, "loss", 0.25)]


def test_weights_and_biases_works_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    serve("wandb", "draft", str(tmp_path), [json.dumps({"step": step, "values": {"loss": 1 / step}}) for step in (1, 2)])
    wandb.finish()  # as the process's end does
    (found,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    written = found.read_bytes()
    assert b"loss" in written and b"1.0" in written and b"0.5" in written


def test_a_logger_that_dies_or_hangs_disturbs_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), MetricLog(["tensorboard"], tmp_path, "draft") as metrics:
        metrics.send(event(1))
        process = metrics._processes["tensorboard"]
        os.kill(process.pid, signal.SIGSTOP)
        began = time.monotonic()
        for step in range(1, 3000):
            metrics.send(event(step))
        assert time.monotonic() - began < 20, "200 KB went into a pipe of 64 that nobody reads"
        os.kill(process.pid, signal.SIGKILL)
        wait_for(lambda: process.poll() is not None)
        for step in range(1, 10):
            metrics.send(event(step))
    assert [record.message for record in caplog.records if "takes no more metrics" in record.message][1:] == []
    assert "tensorboard takes no more metrics" in caplog.text


def test_nothing_starts_before_there_is_something_to_log(tmp_path: Path) -> None:
    with MetricLog(["tensorboard"], tmp_path / "metrics", "draft"):
        pass
    assert not (tmp_path / "metrics").exists()


def test_a_logger_without_its_package_is_refused_in_one_sentence(tmp_path: Path) -> None:
    check_loggers(["tensorboard", "wandb"])
    with pytest.raises(UserError, match="running.loggers names no_such, and that package is not installed: pip install"):
        check_loggers(["no_such"])
    (tmp_path / "s.yaml").write_text("running: {loggers: [mlflow]}")
    with pytest.raises(UserError, match="running.loggers"):
        load_settings(tmp_path / "s.yaml", [])
