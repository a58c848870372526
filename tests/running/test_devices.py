"""GPUs that other processes use are not leased. This host may have none: a program in the place of nvidia-smi tells of two."""

import os
import time
from pathlib import Path

import pytest

from flows.begun import begin
from running.devices import DevicePool
from tasks.settings import Settings

SMI = """#!/bin/sh
case "$1" in
--query-gpu=*) printf '0, GPU-aa, 570.1, NVIDIA H200\\n1, GPU-bb, 570.1, NVIDIA H200\\n' ;;
--query-compute-apps=*) cat "$(dirname "$0")/used" ;;  # fails where there is no such file
esac
"""


@pytest.fixture
def used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of what nvidia-smi says of processes on GPUs: the second GPU is in use."""
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "used").write_text("GPU-bb, 4711\n")
    return tmp_path / "used"


def leased(pool: DevicePool) -> str | None:
    """The name of the device that is leased and kept."""
    found = pool.try_lease("accelerator")
    return found and found[0].name


def test_a_gpu_that_another_process_uses_is_not_leased(used: Path, tmp_path: Path) -> None:
    pool = DevicePool(tmp_path / "state", None, None, share=False)
    assert [device.name for device in pool.gpus] == ["cuda:0", "cuda:1"] and pool.gpus[0].model == "NVIDIA H200, driver 570.1"
    assert leased(pool) == "cuda:0" and leased(pool) is None
    used.write_text("")
    assert leased(pool) == "cuda:1"


def test_it_is_leased_where_sharing_is_wanted(used: Path, tmp_path: Path) -> None:
    pool = DevicePool(tmp_path / "state", [1], None, share=True)
    assert leased(pool) == "cuda:1" and leased(pool) is None


def test_a_run_that_waits_says_for_what(
    used: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("running.devices._TOLD_AFTER", 0.2)
    pool = DevicePool(tmp_path / "state", [1], None, share=False)
    with caplog.at_level("WARNING", "eyas"):
        assert leased(pool) is None and not caplog.records
        time.sleep(0.2)
        assert leased(pool) is None and leased(pool) is None
    assert [record.message for record in caplog.records] == [
        "cuda:1 is in use by process 4711: it is leased once it is free; or set running.share_devices"
    ]


def test_none_is_leased_while_nobody_says_which_are_used(used: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pool = DevicePool(tmp_path / "state", None, None, share=False)
    used.unlink()
    with caplog.at_level("WARNING", "eyas"):
        assert leased(pool) is None and leased(pool) is None
    assert [record.message for record in caplog.records] == [
        "nvidia-smi does not say which GPUs are in use: none is leased until it does; or set running.share_devices"
    ]
    used.write_text("")
    assert leased(pool) == "cuda:0"


@pytest.mark.parametrize(("window", "offered"), [({"devices": [1]}, ["cuda:1"]), ({}, ["cuda:0"])])
def test_a_window_names_its_own(used: Path, tmp_path: Path, window: dict[str, list[int]], offered: list[str]) -> None:
    store = {"path": str(tmp_path / "store"), "state": str(tmp_path / "state")}
    settings = Settings.model_validate({"store": store, "window": window, "running": {"devices": [0]}})
    assert [device.name for device in begin(settings).pool.gpus] == offered
