"""A real Prefect server, and projects that start where a finished one stands."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.projects import Project, copy_checkout, make_project, prefect_server


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
    """The project's code as it was when the session began, so that an edit meanwhile cannot part the tests."""
    folder = tmp_path_factory.mktemp("checkout")
    copy_checkout(folder)
    return folder


@pytest.fixture(scope="session")
def finished(
    tmp_path_factory: pytest.TempPathFactory, checkout: Path, cut_verifier: Path, prefect_api: str
) -> tuple[Project, list[dict[str, Any]]]:
    """A project whose flow has run to its end, and the nodes of that run. Not to be changed: take a ``project``."""
    project = make_project(tmp_path_factory.mktemp("finished") / "project", checkout, cut_verifier, prefect_api)
    return project, project.nodes("run")


@pytest.fixture
def project(
    tmp_path: Path, checkout: Path, finished: tuple[Project, list[dict[str, Any]]], cut_verifier: Path, prefect_api: str
) -> Project:
    """A project of one's own whose store holds what the finished one's holds (hard links: unlink, do not overwrite)."""
    mine = make_project(tmp_path / "project", checkout, cut_verifier, prefect_api)
    shutil.copytree(finished[0].store, mine.store, copy_function=os.link)
    return mine


@pytest.fixture
def fresh(tmp_path: Path, checkout: Path, cut_verifier: Path, prefect_api: str) -> Project:
    """A project with an empty store."""
    return make_project(tmp_path / "project", checkout, cut_verifier, prefect_api)
