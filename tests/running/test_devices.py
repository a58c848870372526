"""GPUs that other processes use are not leased. This host may have none: a program in the place of nvidia-smi tells of two."""

import os
from pathlib import Path

import pytest

from running.devices import DevicePool

SMI = """#!/bin/sh
case "$1" in
--query-gpu=*) printf '0, GPU-aa, 570.1, NVIDIA H200\\n1, GPU-bb, 570.1, NVIDIA H200\\n' ;;
--query-compute-apps=*) cat "$(dirname "$0")/used" ;;
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
