"""A run's copy of the code: what digests see, and nothing else."""

from pathlib import Path

import pytest

from artifacts.code_digest import closure
from running import snapshot


def test_a_snapshot_holds_the_code_and_no_file_that_no_digest_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "checkout"
    for package in snapshot.PACKAGES:
        (root / package / "__pycache__").mkdir(parents=True)
        (root / package / "__init__.py").touch()
        (root / package / "__pycache__" / "x.py").touch()
    (root / "errors.py").write_text("class UserError(Exception): pass\n")
    (root / "tasks" / "stage.py").write_text("from errors import UserError\n")
    (root / "tasks" / "table.json").write_text("{}")
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(snapshot, "project_root", lambda: root)
    code = snapshot.take_snapshot(tmp_path / "run")
    found = {str(path.relative_to(code)) for path in code.rglob("*") if path.is_file()}
    assert found == {"errors.py", "tasks/stage.py", *(f"{package}/__init__.py" for package in snapshot.PACKAGES)}
    assert closure(code, "tasks.stage") == closure(root, "tasks.stage")
