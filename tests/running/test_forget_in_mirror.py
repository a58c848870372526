"""What is forgotten leaves the mirror too, and no machine brings it back."""

from pathlib import Path

import pytest
import yaml

from artifacts.forgotten import id_digest
from errors import UserError
from flows.planning import open_host
from running.cli import main
from running.host import Host
from running.settings_file import load_settings
from tests.artifacts.pipelines import Pipeline, make_pipeline


class Machine:
    """A store with a mirror and the commands of a user."""

    def __init__(self, folder: Path, mirror: str) -> None:
        self.store, self.settings = folder / "store", folder / "settings.yaml"
        self.store.mkdir(parents=True)
        paths = {"path": str(self.store), "state": str(folder / "state"), "mirror": mirror}
        self.settings.write_text(yaml.safe_dump({"store": paths}))

    @property
    def host(self) -> Host:
        return open_host(load_settings(self.settings, []))

    def eyas(self, command: str, *arguments: str) -> int:
        return main([command, str(self.settings), *arguments])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "mirror"


@pytest.fixture
def one(tmp_path: Path, place: Path) -> tuple[Machine, Pipeline]:
    machine = Machine(tmp_path / "one", f"file://{place}")
    made = make_pipeline(machine.store)
    assert machine.eyas("push") == 0
    return machine, made


def holders(folder: Path, text: bytes) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file() and text in path.read_bytes()}


def test_its_blobs_and_rows_leave_the_mirror(one: tuple[Machine, Pipeline], place: Path) -> None:
    machine, made = one
    old = made.refs["synthesis chunk conversations"].digest
    assert holders(place, b'"s1"') >= {"samples.jsonl", "conversations.jsonl"} and list(place.rglob(old))
    assert machine.eyas("forget", "s1") == 0
    assert list(place.rglob(old)), "without --yes nothing changes"
    assert machine.eyas("forget", "s1", "--yes") == 0
    assert holders(place, b'"s1"') == set() and not list(place.rglob(old))


def test_a_new_machine_takes_the_copy_without_it_and_leaves_it_out(
    one: tuple[Machine, Pipeline], tmp_path: Path, place: Path
) -> None:
    machine, made = one
    assert machine.eyas("forget", "s1", "a1", "--yes") == 0
    two = Machine(tmp_path / "two", f"file://{place}").host
    assert two.mirroring is not None
    assert two.forgotten.everything == {id_digest("s1"), id_digest("a1")}
    key = made.keys["synthesis chunk"]
    ref = two.mirroring.records("synthesis", [key])[key].outputs["conversations"]
    two.mirroring.bring({ref.digest})
    assert holders(two.store.folder(ref.digest), b"forgotten_tokens") == {"conversations.jsonl"}


def test_where_the_mirror_cannot_be_cleaned_nothing_is_forgotten(
    one: tuple[Machine, Pipeline], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine, made = one

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("fsspec.implementations.local.LocalFileSystem.rm", refuse)
    assert machine.eyas("forget", "a1", "--yes") == 2
    assert "so nothing was forgotten" in capsys.readouterr().err
    assert made.store.has(made.refs["corpus a masks.0"].digest) and machine.host.forgotten.everything == set()


def test_a_damaged_list_in_the_mirror_is_told(one: tuple[Machine, Pipeline], place: Path) -> None:
    machine, _ = one
    assert machine.eyas("forget", "a1", "--yes") == 0
    path = place / "forgotten.json"
    path.write_bytes(path.read_bytes().replace(b"sources", b"sourcex"))
    with pytest.raises(UserError, match="forgotten conversations would come back"):
        _ = machine.host.forgotten


def test_what_the_mirror_alone_has_leaves_it_too(one: tuple[Machine, Pipeline], tmp_path: Path, place: Path) -> None:
    """Collected here, or made on another machine: the shard, its states and the copy of the conversations lie there only."""
    machine, made = one
    for ref in made.refs.values():
        made.store.delete(ref.digest)
    states = made.refs["hidden_states shard 0 of a states"].digest
    assert list(place.rglob(states))
    assert machine.eyas("forget", "a1", "--yes") == 0
    assert holders(place, b'"a1"') == set() and not list(place.rglob(states))
    two = Machine(tmp_path / "two", f"file://{place}")
    assert two.eyas("forget", "s1", "--yes") == 0
    assert holders(place, b'"s1"') == set() and holders(two.store, b'"s1"') == set()
    assert holders(place, b'"s2"') >= {"conversations.jsonl"}
    assert id_digest("s1") in Machine(tmp_path / "three", f"file://{place}").host.forgotten.everything


def test_a_mirror_that_cannot_be_read_is_told_and_nothing_is_forgotten(
    one: tuple[Machine, Pipeline], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine, made = one

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("fsspec.implementations.local.LocalFileSystem.ls", refuse)
    assert machine.eyas("forget", "a1", "--yes") == 2
    assert "cannot be read" in capsys.readouterr().err
    assert made.store.has(made.refs["corpus a masks.0"].digest)


def test_the_mirror_is_told_again_after_a_kill(
    one: tuple[Machine, Pipeline], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: Path
) -> None:
    """Killed when all is done here and the mirror has not heard of it: typing the command again completes it."""
    machine, made = one

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("running.mirroring.Mirroring.give_forgotten", kill)
        assert machine.eyas("forget", "s1", "--yes") == 130, "what shells report of a program that Ctrl-C ended"
    assert not (place / "forgotten.json").exists()
    assert machine.eyas("forget", "s1", "--yes") == 0
    two = Machine(tmp_path / "two", f"file://{place}").host
    assert two.mirroring is not None and two.forgotten.everything == {id_digest("s1")}
    key = made.keys["synthesis chunk"]
    ref = two.mirroring.records("synthesis", [key])[key].outputs["conversations"]
    two.mirroring.bring({ref.digest})
    assert holders(two.store.folder(ref.digest), b"forgotten_tokens") == {"conversations.jsonl"}
