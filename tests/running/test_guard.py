"""A child opens what it declares, and dies with its parent."""

import json
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


def child_of(folder: Path, source: str, declared: Path) -> "subprocess.CompletedProcess[str]":
    """Run ``running.child`` on an order of one job, whose stage is the module ``stage`` with this source."""
    code = folder / "code"
    code.mkdir()
    (code / "stage.py").write_text(source)
    for name in ("store", "workspace", "cache", "scratch"):
        (folder / name).mkdir(exist_ok=True)
    job = {"key": "k", "label": "a stage", "settings": {}, "knobs": {}, "digests": {}, "scratch": str(folder / "scratch")}
    order = {"module": "stage", "entry": "compute", "gathers": False, "device": "cpu", "threads": 1, "events": 1}
    order |= {"ranks": 1, "pace": None}
    order |= {"snapshot": str(code), "cache": str(folder / "cache"), "workspace": str(folder / "workspace")}
    order |= {"closed": [str(folder / "store")], "jobs": [{**job, "paths": {"verifier": str(declared)}}]}
    (folder / "order.json").write_text(json.dumps(order))
    command = [sys.executable, "-P", "-m", "running.child", str(folder / "order.json")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(code), str(ROOT)])}
    pipe, held = os.pipe()  # standard input, open as long as the parent lives
    try:
        return subprocess.run(command, env=environment, stdin=pipe, capture_output=True, text=True, timeout=60, check=False)
    finally:
        os.close(pipe)
        os.close(held)


READ = "def compute(job):\n    print(open({path}).read())\n"


@pytest.fixture
def cached_model(tmp_path: Path) -> Path:
    """A snapshot as Hugging Face's cache keeps it: its files are links to a folder beside it."""
    (tmp_path / "hub/blobs").mkdir(parents=True)
    (tmp_path / "hub/blobs/3fa9").write_text("weights")
    (tmp_path / "hub/blobs/77aa").write_text("of another snapshot")
    (tmp_path / "hub/snapshots/abc").mkdir(parents=True)
    (tmp_path / "hub/snapshots/abc/model.safetensors").symlink_to("../../blobs/3fa9")
    return tmp_path / "hub/snapshots/abc"


def test_a_stage_reads_a_model_of_hugging_faces_cache(tmp_path: Path, cached_model: Path) -> None:
    done = child_of(tmp_path, READ.format(path="job.input('verifier') / 'model.safetensors'"), cached_model)
    assert done.returncode == 0 and "weights" in done.stdout, done.stderr


@pytest.mark.parametrize("path", ["hub/blobs/77aa", "store/blob"])
def test_every_stage_runs_behind_the_guard(tmp_path: Path, cached_model: Path, path: str) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store/blob").write_text("states")
    done = child_of(tmp_path, READ.format(path=repr(str(tmp_path / path))), cached_model)
    assert done.returncode == 1 and "is not among the inputs that this stage declares" in done.stdout


def test_a_link_in_a_blob_opens_nothing_else(tmp_path: Path) -> None:
    for name in ("mine", "other"):
        (tmp_path / "store" / name).mkdir(parents=True)
    (tmp_path / "store/other/states").write_text("states")
    (tmp_path / "store/mine/link").symlink_to("../other/states")
    done = child_of(tmp_path, READ.format(path="job.input('verifier') / 'link'"), tmp_path / "store/mine")
    assert done.returncode == 1 and "is not among the inputs" in done.stdout


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
