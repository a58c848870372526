"""A child of several ranks, as real processes under torchrun: what one says reaches the parent, and none outlives another."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from artifacts.stage import Node, Stage
from errors import UserError
from running.devices import Device, DevicePool, together
from running.launch import ChildFailed, ChildKilled, Children, Order, Place, run_child
from tests.projects import ROOT, copy_checkout, wait_for

HEAD = """
import os, signal, sys, time
from pathlib import Path
from errors import UserError
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

def compute(job):
    (job.scratch / f"pid.{RANK}").write_text(str(os.getpid()))
    while len(list(job.scratch.glob("pid.*"))) < WORLD:
        time.sleep(0.01)
"""


def run(folder: Path, body: str) -> None:
    """Run a stage of this body on two ranks; the progress that came is written down."""
    code = folder / "code"
    for name in ("code", "run", "workspace"):
        (folder / name).mkdir()
    copy_checkout(code)
    (code / "stage.py").write_text(HEAD + body)
    place = Place(code, folder / "run", folder / "workspace", folder / "cache", (), Children())
    node = Node(Stage("training", module="stage", libraries=()), "", {}, {})
    lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR)

    def note(order: Order, event: dict[str, Any]) -> None:
        with open(folder / "progress", "a") as file:
            file.write(f"{event['done']} of {event['total']:.0f} {event['unit']}\n")

    try:
        device = together([Device("cpu:0", 1), Device("cpu:1", 1)])
        order = Order(node, "k", {}, folder / "scratch", lock)
        run_child(place, [order], device, lambda order, event: None, note)
    finally:
        os.close(lock)


def ranks_of(folder: Path) -> list[int]:
    return [int(path.read_text() or 0) for path in (folder / "scratch").glob("pid.*")]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def all_gone(pids: list[int]) -> None:
    wait_for(lambda: not any(map(alive, pids)))


def test_ranks_meet_and_the_first_tells(tmp_path: Path) -> None:
    body = """
    from kimi_adapters.process_group import joined
    with joined(job.device) as ranks:
        total = ranks.sums([ranks.number + 1])
        if ranks.first:
            job.progress(ranks.count, total[0], "ranks")
            job.finish({})
"""
    with pytest.raises(ChildFailed, match="and no result"):  # it hands over nothing, and nothing else went wrong
        run(tmp_path, body)
    (line,) = (tmp_path / "progress").read_text().splitlines()
    assert line == "2 of 3 ranks"


def test_a_ranks_error_is_the_childs_and_ends_the_other(tmp_path: Path) -> None:
    body = """
    if RANK == 1:
        job.progress(1, 2, "steps")
        raise UserError("shard 7 has no states: extract it again")
    while Path(f"/proc/{(job.scratch / 'pid.1').read_text()}/fd").exists():
        time.sleep(0.01)
    raise RuntimeError("connection closed by peer")
"""
    with pytest.raises(UserError, match="shard 7 has no states"):
        run(tmp_path, body)
    assert len(ranks_of(tmp_path)) == 2
    all_gone(ranks_of(tmp_path))


def test_a_killed_rank_is_named_whatever_the_others_say_of_it(tmp_path: Path) -> None:
    body = """
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    while Path(f"/proc/{(job.scratch / 'pid.1').read_text()}/exe").exists():
        time.sleep(0.01)
    raise RuntimeError("connection closed by peer")
"""
    with pytest.raises(ChildKilled, match="rank 1 was killed by SIGKILL"):
        run(tmp_path, body)
    all_gone(ranks_of(tmp_path))


PARENT = """
import sys
from pathlib import Path
from tests.running.test_ranks import run
run(Path(sys.argv[1]), "    time.sleep(600)\\n")
"""


@pytest.mark.parametrize("victim", ["the parent", "the process above the ranks"])
def test_ranks_end_with_what_is_above_them(tmp_path: Path, victim: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], env=environment, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: len(ranks_of(tmp_path)) == 2 and all(ranks_of(tmp_path)), process=parent)
    pids = ranks_of(tmp_path)
    above = int(Path(f"/proc/{pids[0]}/stat").read_text().split()[3])
    assert alive(above) and all(map(alive, pids))
    os.kill(parent.pid if victim == "the parent" else above, signal.SIGKILL)
    all_gone([*pids, above])
    _, errors = parent.communicate(timeout=60)
    assert victim == "the parent" or "was killed by SIGKILL" in errors


def test_devices_are_leased_together_or_not_at_all(tmp_path: Path) -> None:
    pool = DevicePool(tmp_path, [], 3, False)
    with pool.lease("accelerator", lambda: None) as one, pool.lease("accelerator", lambda: None, 2) as two:
        assert (one.name, two.name, two.count) == ("cpu:0", "cpu:1,2", 2)

        def look() -> None:
            raise TimeoutError

        with pytest.raises(TimeoutError), pool.lease("accelerator", look, 1):
            pass
    with pool.lease("accelerator", lambda: None) as one:
        with pytest.raises(TimeoutError), pool.lease("accelerator", look, 3):
            pass
        with pool.lease("accelerator", lambda: None, 2) as two:
            assert two.name == "cpu:1,2", "those that were found beside the missing one are free again"
    with pytest.raises(UserError, match="running.training_devices is 4, and this run may lease 3 processor shares"):
        pool.check_count("running.training_devices", 4)
    pool.check_count("running.training_devices", 3)


def test_together_gpus_are_all_visible() -> None:
    device = together([Device("cuda:2", 8, "H200"), Device("cuda:5", 8, "H200")])
    assert device.environment["CUDA_VISIBLE_DEVICES"] == "2,5"
    assert (device.torch_name, device.threads, device.model) == ("cuda", 8, "H200")
