"""Imports go one way: flows to tasks, tasks to kimi_adapters and artifacts; running serves flows."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SEES: dict[str, set[str]] = {
    "artifacts": set(),
    "kimi_adapters": set(),
    "tasks": {"artifacts", "kimi_adapters", "running"},
    "running": {"artifacts", "flows", "tasks"},
    "flows": {"artifacts", "running", "tasks"},
}


def imported(path: Path) -> set[str]:
    """The modules that a file names in its imports, wherever they stand."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    froms = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return froms | {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}


@pytest.mark.parametrize("folder", SEES)
def test_a_folder_sees_what_it_may(folder: str) -> None:
    for path in (ROOT / folder).glob("**/*.py"):
        seen = {name.partition(".")[0] for name in imported(path)} & (SEES.keys() | {"tests", "benchmarks"})
        assert seen <= SEES[folder] | {folder}, path.name


def test_only_an_imported_module_defines() -> None:
    """kimi_k25.md, row 19: a spawned process imports the modules of the one that spawned it, and would do their work."""
    for folder in SEES:
        for path in (ROOT / folder).glob("**/*.py"):
            for node in ast.parse(path.read_text()).body:
                does = isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant)
                assert not does and not isinstance(node, ast.For | ast.While | ast.With), f"{path.name}, line {node.lineno}"
