"""A real Prefect server, and projects that start where a finished one stands."""

import compileall
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.projects import Project, copy_checkout, make_project
from tests.servers import prefect_server
from tests.sharing import made_once


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first file that needs the finished project goes before all others, other such files after the rest of this folder:
    while one worker makes it, nobody waits for it. What is left for the end are short files."""
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    waiting = {item.path for item in here if "finished" in getattr(item, "fixturenames", ())}
    first = min(waiting, default=None)
    items.sort(key=lambda item: (item.path != first, item.path.parent, item.path in waiting))


@pytest.fixture(scope="session")
def prefect_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where this session's Prefect server keeps its database."""
    return tmp_path_factory.mktemp("prefect")


@pytest.fixture(scope="session")
def prefect_api(prefect_home: Path) -> Iterator[str]:
    """The address of a Prefect server of this session's own."""
    with prefect_server(prefect_home) as url:
        yield url


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's code as it was when the session began, so that an edit meanwhile cannot part the tests; compiled, so that
    no copy of it is compiled anew."""

    def make(folder: Path) -> None:
        copy_checkout(folder)
        assert compileall.compile_dir(folder, quiet=1)

    return made_once(tmp_path_factory, "checkout", make)


@pytest.fixture(scope="session")
def finished_folder(
    tmp_path_factory: pytest.TempPathFactory, checkout: Path, cut_verifier: Path, prefect_home: Path, prefect_api: str
) -> Path:
    """Holds a ``project`` whose flow has run to its end, ``nodes.json`` of that run and the ``server`` that it ran with."""

    def make(folder: Path) -> None:
        project = make_project(folder / "project", checkout, cut_verifier, prefect_api)
        (folder / "nodes.json").write_text(json.dumps(project.nodes("run")))
        (folder / "server").symlink_to(prefect_home)

    return made_once(tmp_path_factory, "finished", make)


@pytest.fixture(scope="session")
def finished(finished_folder: Path, prefect_api: str) -> tuple[Project, list[dict[str, Any]]]:
    """A project whose flow has run to its end, and the nodes of that run. Not to be changed: take a ``project``."""
    nodes = json.loads((finished_folder / "nodes.json").read_text())
    return Project.at(finished_folder / "project", prefect_api), nodes


@pytest.fixture
def project(
    tmp_path: Path, checkout: Path, finished: tuple[Project, list[dict[str, Any]]], cut_verifier: Path, prefect_api: str
) -> Project:
    """A project of one's own whose store holds what the finished one's holds."""
    mine = make_project(tmp_path / "project", checkout, cut_verifier, prefect_api)
    mine.take_store_of(finished[0])
    return mine


@pytest.fixture
def fresh(tmp_path: Path, checkout: Path, cut_verifier: Path, prefect_api: str) -> Project:
    """A project with an empty store."""
    return make_project(tmp_path / "project", checkout, cut_verifier, prefect_api)
