"""Run manifests tell how a run ended; an alias moves only for whoever knows where it stands."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from artifacts import runs as module
from artifacts.aliases import Aliases, AliasMoved
from artifacts.runs import RunNode, Runs
from errors import UserError

VERIFIER = "ab" * 32


def node(status: str) -> RunNode:
    return RunNode(stage="training", node="", key="k", status=status, digest=None)


def test_a_run_notes_its_end_however_it_comes(tmp_path: Path) -> None:
    runs, nodes = Runs(tmp_path), [node("run")]
    with runs.noting("20261101T000000-aaaa", "demo", lambda: nodes):
        (begun,) = runs.newest(3)
        assert (begun.state, begun.ended, begun.nodes) == ("running", None, nodes)
        nodes.append(node("hit"))
    with pytest.raises(KeyboardInterrupt), runs.noting("20261102T000000-bbbb", "demo", lambda: nodes):
        raise KeyboardInterrupt
    newest, older = runs.newest(3)
    assert (newest.run, newest.state, older.state, older.nodes) == ("20261102T000000-bbbb", "failed", "completed", nodes)
    assert newest.ended is not None and newest.began <= newest.ended


def test_a_killed_run_has_noted_what_it_knew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_EVERY", 0.05)
    pid = os.fork()
    if pid == 0:
        nodes = [node("run")]
        with Runs(tmp_path).noting("20261101T000000-aaaa", "demo", lambda: list(nodes)):
            nodes.append(node("hit"))
            time.sleep(60)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not (found := Runs(tmp_path).newest(1)) or len(found[0].nodes) < 2:
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    (killed,) = Runs(tmp_path).newest(1)
    assert killed.state == "running" and [one.status for one in killed.nodes] == ["run", "hit"]


def test_an_alias_moves_only_from_where_it_is_believed_to_stand(tmp_path: Path) -> None:
    aliases = Aliases(tmp_path)
    assert aliases.get(VERIFIER, "champion") is None
    aliases.move(VERIFIER, "champion", "d1", None, "the first")
    with pytest.raises(AliasMoved, match="stands for d1 and not for None"):
        aliases.move(VERIFIER, "champion", "d2", None, "also the first")
    moved = aliases.move(VERIFIER, "champion", "d2", "d1", "longer by 0.2")
    assert [(one.digest, one.because) for one in moved.history] == [("d1", "the first"), ("d2", "longer by 0.2")]
    assert aliases.get(VERIFIER, "champion") == "d2" and aliases.get("cd" * 32, "champion") is None
    assert aliases.all() == [moved]


def test_an_alias_knows_what_it_named_before(tmp_path: Path) -> None:
    """What was taken back is not gone back to."""
    aliases, before = Aliases(tmp_path), []
    for number, digest in enumerate(("d1", "d2", "d3", "d2", "d4", "d2", "d1")):
        now = aliases.get(VERIFIER, "champion")
        before.append(aliases.move(VERIFIER, "champion", digest, now, str(number)).before)
    assert before == [None, "d1", "d2", "d1", "d2", "d1", None]


def test_of_many_that_move_an_alias_at_once_one_wins(tmp_path: Path) -> None:
    Aliases(tmp_path).move(VERIFIER, "champion", "d0", None, "")
    won, barrier = [], threading.Barrier(8)

    def move(number: int) -> None:
        barrier.wait()
        try:
            Aliases(tmp_path).move(VERIFIER, "champion", f"d{number}", "d0", "")
            won.append(f"d{number}")
        except AliasMoved:
            pass

    threads = [threading.Thread(target=move, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [Aliases(tmp_path).get(VERIFIER, "champion")]


@pytest.mark.parametrize(("verifier", "name"), [(VERIFIER, "../up"), (VERIFIER, "Champion"), ("../..", "champion")])
def test_names_are_no_paths(tmp_path: Path, verifier: str, name: str) -> None:
    with pytest.raises(UserError, match="no name for an alias"):
        Aliases(tmp_path).move(verifier, name, "d1", None, "")


def test_a_damaged_alias_is_one_sentence(tmp_path: Path) -> None:
    aliases = Aliases(tmp_path)
    aliases.move(VERIFIER, "champion", "d1", None, "")
    (path,) = aliases.paths()
    path.write_bytes(path.read_bytes().replace(b"d1", b"d2"))
    with pytest.raises(UserError, match="is damaged"):
        aliases.all()
