"""Extraction's stage behind the guard on an NVIDIA GPU: kernels are compiled there, and bytes are those of any pass."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kimi_adapters.tiny_checkpoint import make

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")]


def extracted(folder: Path, verifier: Path, size: int) -> list[str]:
    """The lines of a process that takes `size` shards a pass."""
    (folder / "cache").mkdir(parents=True)
    (folder / "workspace").mkdir()
    environment = {
        **os.environ,
        "TRITON_CACHE_DIR": str(folder / "cache" / "triton"),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "TMPDIR": str(folder / "workspace"),
    }
    command = [sys.executable, "-m", "tests.tasks.guarded_extraction", str(folder), str(verifier), "cuda:0", str(size)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def test_the_bytes_of_a_shard_do_not_depend_on_the_pass(tmp_path: Path) -> None:
    verifier = make(tmp_path / "verifier")
    alone, together = (extracted(tmp_path / str(size), verifier, size) for size in (1, 3))
    assert len(alone) == 3 and alone == together
