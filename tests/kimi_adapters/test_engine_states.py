"""States are drawn file by file: each is whole when it is read, and what requests left behind is removed."""

import fcntl
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from errors import UserError
from kimi_adapters.engine_states import SampleFailed, Shape, Source, draw, fault_of, files_of, sweep
from kimi_adapters.torch_file import write_tensors
from tests.kimi_adapters.llama_fixtures import write_tiny_llama
from tests.states_endpoint import MODEL, StatesEndpoint

LAYERS = [1, 2, 3]
SHAPE = Shape(3, 4, "float32")


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[StatesEndpoint]:
    (tmp_path / "llama").mkdir()
    write_tiny_llama(tmp_path / "llama")
    with StatesEndpoint(tmp_path / "llama", tmp_path / "states", LAYERS).served() as served:
        yield served


def test_a_slow_answer_is_asked_for_again_and_told_where_all_are(endpoint: StatesEndpoint) -> None:
    source = Source(endpoint.url, MODEL, endpoint.folder, timeout=2.0, attempts=8, backoff=0.01)
    shape, told = Shape(len(LAYERS) + 1, 48, "float32"), lambda done: None
    endpoint.fault = lambda number: "slow" if number == 1 else ""
    (path,) = files_of(draw(source, [[7, 8, 9]], shape, told))
    assert endpoint.asked > 1 and {one.stem for one in endpoint.folder.iterdir()} == {path.stem, "foreign"}
    endpoint.fault = lambda number: "slow"
    with pytest.raises(SampleFailed, match="sample 0 got no states from the engine in 2 tries: no answer within 0.2 s"):
        draw(replace(source, timeout=0.2, attempts=2), [[7, 8, 9]], shape, told)
    endpoint.fault = lambda number: "slow" if number == before + 1 else "500"
    before = endpoint.asked
    with pytest.raises(SampleFailed, match="in 1 tries: status 500"):  # its sibling is given up with it
        draw(replace(source, timeout=60.0, attempts=1), [[7, 8, 9], [6, 5, 4]], shape, told)
    assert endpoint.asked == before + 2 and {one.stem for one in endpoint.folder.iterdir()} == {path.stem, "foreign"}


def test_a_file_is_read_once_the_engine_lets_go_of_it(tmp_path: Path) -> None:
    path, lock = tmp_path / "a.safetensors", tmp_path / "a.safetensors.lock"
    with open(lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert fault_of(path, [1, 2], SHAPE, 0.2) == "its file was not finished after 0.2 s"
        with open(path, "wb") as file:
            write_tensors(file, {"hidden_states": torch.zeros(2, 3, 4), "token_ids": torch.tensor([1, 2])})
    assert fault_of(path, [1, 2], SHAPE, 0.2) is None and not lock.exists()


def test_a_file_that_the_engine_still_writes_for_a_request_given_up_is_waited_for(tmp_path: Path) -> None:
    given_up, kept, another = (tmp_path / f"cmpl-{name}-0.safetensors" for name in ("mine-1-0", "mine-2-0", "minelike-1-0"))
    kept.touch()
    another.touch()
    held = open(f"{given_up}.lock", "w")  # noqa: SIM115 - the thread closes it
    fcntl.flock(held, fcntl.LOCK_EX)

    def write() -> None:
        given_up.touch()
        held.close()

    thread = threading.Timer(0.3, write)
    thread.start()
    sweep(tmp_path, "mine", [kept], 60.0)
    thread.join()
    assert set(tmp_path.iterdir()) == {kept, another}


def test_a_key_that_is_wrong_for_the_samples_alone_is_told_without_it(endpoint: StatesEndpoint) -> None:
    endpoint.key = "sk-Quetzal-7"
    source = Source(endpoint.url, MODEL, endpoint.folder, key="sk-Quetzal-8", backoff=0.01)
    assert "Quetzal" not in repr(source)
    with pytest.raises(UserError, match="status 401") as told:
        draw(source, [[7, 8, 9]], SHAPE, lambda done: None)
    assert "Quetzal" not in str(told.value)
