"""The project's code as it was when a run began: digests are taken from this copy and every child starts from it."""

import shutil
import uuid
from datetime import UTC, datetime
from pathlib import Path

from artifacts.code_digest import PACKAGES

_KEPT_RUNS = 20


def project_root() -> Path:
    """The folder that holds the project's packages."""
    return Path(__file__).resolve().parent.parent


def new_run_folder(state: Path) -> Path:
    """``<state>/runs/<time>-<random>``; older runs past the newest 20 are removed."""
    runs = state.absolute() / "runs"
    folder = runs / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:8]}"
    folder.mkdir(parents=True)
    remove_old_runs(runs, _KEPT_RUNS)
    return folder


def remove_old_runs(runs: Path, kept: int) -> None:
    """Remove all run folders but the newest ``kept``."""
    for old in sorted(runs.glob("*"))[:-kept]:
        shutil.rmtree(old, ignore_errors=True)


def take_snapshot(run_folder: Path) -> Path:
    """Copy the project's modules to ``<run>/code`` and return that folder."""
    source, target = project_root(), run_folder / "code"
    target.mkdir()
    shutil.copy2(source / "errors.py", target)
    for package in PACKAGES:
        shutil.copytree(source / package, target / package, ignore=_no_code)
    return target


def _no_code(folder: str, names: list[str]) -> list[str]:
    """What no digest sees: a table beside the code would be read by a stage and be in no key, so it is not there."""
    return [name for name in names if name == "__pycache__" or not (name.endswith(".py") or Path(folder, name).is_dir())]
