"""Tests with a real engine: `make test-engine` runs them; elsewhere they are skipped, and say so.

One server runs at a time, since two would take 8 GB. A file starts its own; those that want the small verifier's hidden states
share one, and come last.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kimi_adapters.engine_command import hidden_states_arguments
from tests.engine.vllm import LAYERS, Served, environment_folder, vllm


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies in this folder; what shares the session's server comes after what starts its own."""
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    for item in here:
        item.add_marker(pytest.mark.engine)
        if environment_folder() is None:
            item.add_marker(pytest.mark.skip(reason="needs vLLM: run `make test-engine`"))
    shared = [item for item in here if "served" in getattr(item, "fixturenames", ())]
    items[:] = [item for item in items if item not in shared] + shared


@pytest.fixture(scope="session")
def served(whole_verifier: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A vLLM of the small verifier that gives the hidden states of LAYERS, for the rest of the session."""
    folder = tmp_path_factory.mktemp("states")
    arguments = hidden_states_arguments(LAYERS, 30, folder, without_cuda=True)
    with vllm(whole_verifier, folder / "server.log", *arguments) as url:
        yield Served(url, whole_verifier, folder)
