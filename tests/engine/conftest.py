"""Tests with a real engine: `make test-engine` runs them; elsewhere they are skipped, and say so.

Servers are fixtures of a module, since two would take 8 GB: a file is of one verifier and starts one server.
"""

from pathlib import Path

import pytest

from tests.engine.vllm import environment_folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies in this folder."""
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    for item in here:
        item.add_marker(pytest.mark.engine)
        if environment_folder() is None:
            item.add_marker(pytest.mark.skip(reason="needs vLLM: run `make test-engine`"))
