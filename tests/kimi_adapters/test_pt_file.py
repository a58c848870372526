"""Files of torch.save read without torch: the same values as torch reads, no code run, damage told in one sentence."""

import os
import pickle
import random
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from errors import UserError
from kimi_adapters.pt_file import PtFile, PtTensor

DTYPES = [torch.bfloat16, torch.float32, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool]


def as_torch(file: PtFile, tensor: PtTensor, dtype: torch.dtype) -> torch.Tensor:
    content = file.bytes(tensor)
    return torch.frombuffer(content, dtype=dtype).reshape(tensor.shape) if content else torch.empty(tensor.shape, dtype=dtype)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dtype=st.sampled_from(DTYPES),
    shape=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    first=st.integers(0, 3),
    mask=st.lists(st.integers(0, 1)),
)
def test_tensors_and_lists_come_back(tmp_path: Path, dtype: torch.dtype, shape: list[int], first: int, mask: list[int]) -> None:
    """Slices of a larger tensor included: only their rows are read."""
    whole = torch.randint(0, 2, [shape[0] + first, *shape[1:]]).to(dtype)
    saved = {"states": [whole[first:], whole], "mask": mask, "nested": OrderedDict(a=(1, 2.5, "b", None))}
    torch.save(saved, tmp_path / "a.pt")
    with PtFile(tmp_path / "a.pt") as file:
        assert file.content["mask"] == mask and file.content["nested"] == {"a": (1, 2.5, "b", None)}
        for found, expected in zip(file.content["states"], saved["states"], strict=True):  # type: ignore[call-overload]
            assert torch.equal(as_torch(file, found, dtype), expected)


class Bomb:
    """Pickled code: makes a folder when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_pickled_code_does_not_run(tmp_path: Path) -> None:
    boom, path = tmp_path / "boom", tmp_path / "bad.pt"
    torch.save({"input_ids": torch.arange(3), "hidden_states": Bomb(boom)}, path)
    with pytest.raises(UserError) as caught:
        PtFile(path)
    assert not boom.exists() and "posix.mkdir" in str(caught.value) and len(str(caught.value).splitlines()) == 1
    torch.load(path, weights_only=False)
    assert boom.exists(), "torch itself would have run it"


@pytest.mark.parametrize("name", ["builtins.eval", "torch.load", "torch._utils._rebuild_parameter", "os.system"])
def test_no_other_name_is_imported(tmp_path: Path, name: str) -> None:
    module, _, attribute = name.rpartition(".")
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as file:
        file.writestr("a/data.pkl", f"c{module}\n{attribute}\n(tR.".encode())
    with pytest.raises(UserError, match="asks for"):
        PtFile(tmp_path / "a.pt")


def test_what_is_no_such_file(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(UserError, match="not a whole file of torch.save"):
        PtFile(path)
    torch.save({"a": torch.ones(3)}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(UserError, match="not a whole file of torch.save"):
        PtFile(path)
    torch.save({"a": torch.ones(3, 4).t()}, path)
    with pytest.raises(UserError, match="not contiguous"):
        PtFile(path)
    with pytest.raises(UserError, match="cannot be opened"):
        PtFile(tmp_path / "nowhere.pt")


def test_any_cut_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"a": torch.arange(200.0), "b": [1] * 50}, path)
    whole = path.read_bytes()
    for size in [*random.Random(0).sample(range(len(whole)), 40), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(UserError) as caught:
            PtFile(path)
        assert len(str(caught.value).splitlines()) == 1


def test_flipped_bits_end_in_one_sentence_or_in_a_tensor(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"a": torch.arange(200.0), "b": [1] * 50}, path)
    whole = path.read_bytes()
    chosen = random.Random(1)
    for _ in range(150):
        hurt = bytearray(whole)
        hurt[chosen.randrange(len(whole))] ^= 1 << chosen.randrange(8)
        path.write_bytes(hurt)
        try:
            with PtFile(path) as file:
                if isinstance(file.content, dict) and isinstance(file.content.get("a"), PtTensor):
                    file.bytes(file.content["a"])
        except UserError as error:
            assert len(str(error).splitlines()) == 1
