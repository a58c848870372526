"""A store and a state folder that cannot be used are told by their own setting."""

import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from errors import UserError
from running.host import Host

NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that any user may enter."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


def _open(folder: Path, told: "multiprocessing.SimpleQueue[str]") -> None:
    if os.geteuid() == 0:
        os.setuid(NOBODY)  # nothing is read-only to root
    try:
        Host.open(str(folder / "store"), str(folder / "state"), None)
        told.put("")
    except UserError as error:
        told.put(str(error))


@pytest.mark.parametrize(("closed", "setting"), [("store", "store.path"), ("state", "store.state")])
def test_a_read_only_folder_is_told(folder: Path, closed: str, setting: str) -> None:
    for name in ("store", "state"):
        (folder / name).mkdir()
        os.chmod(folder / name, 0o555 if name == closed else 0o777)
    context = multiprocessing.get_context("fork")
    told = context.SimpleQueue()
    process = context.Process(target=_open, args=(folder, told))
    process.start()
    process.join(30)
    assert f"{folder / closed} is not writable: correct {setting}" in told.get()


@pytest.mark.parametrize(("file", "setting"), [("store", "store.path"), ("state", "store.state")])
def test_a_file_where_a_folder_belongs_is_told(folder: Path, file: str, setting: str) -> None:
    (folder / file).touch()
    with pytest.raises(UserError, match=f"{file} cannot be made .*correct {setting}"):
        Host.open(str(folder / "store"), str(folder / "state"), None)
