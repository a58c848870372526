"""A child opens what it declares, and dies with its parent."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def child(program: str) -> "subprocess.Popen[bytes]":
    """A Python process over the checkout's code."""
    return subprocess.Popen(
        [sys.executable, "-P", "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


@pytest.mark.parametrize(
    ("file", "allowed"),
    [
        ("store/blobs/declared/states", True),
        ("store/blobs/other/states", False),
        ("elsewhere/notes.txt", False),
        ("store/link", False),
    ],
)
def test_only_declared_inputs_can_be_opened(tmp_path: Path, file: str, allowed: bool) -> None:
    for name in ("store/blobs/declared/states", "store/blobs/other/states", "elsewhere/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "store/link").symlink_to(tmp_path / "store/blobs/other/states")
    program = (
        "from pathlib import Path; from running.guard import only_declared\n"
        f"root = Path({str(tmp_path)!r})\n"
        "only_declared([root / 'store/blobs/declared'], [root / 'store'])\n"
        "import json, decimal, sqlite3  # the interpreter's own files stay open to it\n"
        f"print(open(root / {file!r}).read())"
    )
    done = child(program)
    output, _ = done.communicate(timeout=60)
    assert (done.returncode == 0) == allowed, output
    assert allowed or b"is not among the inputs that this stage declares" in output


def test_a_stage_that_reads_more_than_it_declares_fails(tmp_path: Path) -> None:
    """Every stage's child runs under the guard: a vocabulary that opened states would not get them."""
    states = tmp_path / "store/blobs/ab/states.safetensors"
    states.parent.mkdir(parents=True)
    states.write_bytes(b"x" * 64)
    program = (
        "from pathlib import Path; from running.guard import only_declared\n"
        f"root = Path({str(tmp_path)!r})\n"
        "from kimi_adapters.tensor_file import TensorFile\n"
        "only_declared([root / 'workspace'], [root / 'store'])\n"
        "TensorFile(root / 'store/blobs/ab/states.safetensors')"
    )
    done = child(program)
    output, _ = done.communicate(timeout=60)
    assert done.returncode != 0 and b"states.safetensors" in output


def test_a_child_ends_with_its_own_children_when_the_pipe_closes() -> None:
    program = (
        "from running.guard import die_with_parent; die_with_parent()\n"
        "import subprocess, time; grandchild = subprocess.Popen(['sleep', '300'])\n"
        "print(grandchild.pid, flush=True); time.sleep(300)"
    )
    process = child(program)
    assert process.stdout is not None and process.stdin is not None
    grandchild = int(process.stdout.readline())
    process.stdin.close()
    process.wait(5)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and _runs(grandchild):
        time.sleep(0.05)
    assert not _runs(grandchild)


def _runs(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
