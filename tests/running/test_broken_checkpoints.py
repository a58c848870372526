"""A broken or foreign checkpoint is one sentence of the plan, through the command line, before anything runs."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kimi_adapters.tiny_checkpoint import make
from kimi_adapters.weights import INDEX, weight_files
from running.cli import main


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("kimi"))


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def quantized(**changes: Any) -> Callable[[Path], None]:
    """Changes of the quantization, those of its weights among them."""

    def change(values: dict[str, Any]) -> None:
        found = values["text_config"]["quantization_config"]
        weights = found["config_groups"]["group_0"]["weights"]
        for name, value in changes.items():
            (weights if name in weights else found)[name] = value

    return lambda folder: edit(folder / "config.json", change)


def cut(folder: Path) -> None:
    path = weight_files(folder)[1]
    os.truncate(path, path.stat().st_size // 2)


def misplaced(folder: Path) -> None:
    def change(values: dict[str, Any]) -> None:
        first, last = weight_files(folder)[0].name, weight_files(folder)[-1].name
        name = next(name for name, file in values["weight_map"].items() if file == first)
        values["weight_map"][name] = last

    edit(folder / INDEX, change)


CASES: dict[str, tuple[Callable[[Path], None], str]] = {
    "the index names a missing file": (lambda folder: weight_files(folder)[1].unlink(), "lacks model-00002-of-"),
    "the index names the wrong file": (misplaced, "which model.safetensors.index.json says it has"),
    "the index is none": (
        lambda folder: edit(folder / INDEX, lambda values: values.pop("weight_map")),
        "is not a safetensors index",
    ),
    "a truncated shard": (cut, "is not a whole safetensors file"),
    "an empty shard": (lambda folder: os.truncate(weight_files(folder)[0], 0), "is not a whole safetensors file"),
    "a group size that does not divide": (quantized(group_size=48), "quantization groups of 48, which do not divide"),
    "a group size of no whole words": (quantized(group_size=20), "quantization groups of 20; supported: multiples of 8"),
    "a group size that the scales do not have": (quantized(group_size=16), "where its config.json makes it"),
    "an unknown method": (quantized(quant_method="awq"), "quant_method = 'awq'; supported: 'compressed-tensors'"),
    "an unknown format": (quantized(format="marlin-24"), "format = 'marlin-24'; supported: 'pack-quantized'"),
    "another width": (quantized(num_bits=8), "num_bits = 8; supported: 4"),
    "no symmetry": (quantized(symmetric=False), "symmetric = False; supported: True"),
    "fewer layers than the configuration has": (
        lambda folder: edit(folder / "config.json", lambda values: values["text_config"].update(num_hidden_layers=9)),
        "has weights of 7 layers where its config.json says 9",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_one_sentence_in_the_plan(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(made, folder)
    assert plan(folder, tmp_path) == 0, "whole, it is planned with"
    assert capsys.readouterr().err.count("6 tensors are not the text model's and are left out") == 1
    break_it, expected = CASES[case]
    break_it(folder)
    assert plan(folder, tmp_path) == 2
    out, errors = capsys.readouterr()
    assert not out and errors.startswith("eyas: ") and len(errors.splitlines()) == 1 and expected in errors
    assert not (tmp_path / "store" / "records").exists()


def plan(folder: Path, place: Path) -> int:
    talk = {"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]}
    (place / "a.jsonl").write_text(json.dumps(talk) + "\n")
    settings = {
        "verifier": {"directory": str(folder)},
        "data": {"conversations": [str(place / "a.jsonl")]},
        "vocabulary": {"size": 512},
        "store": {"path": str(place / "store"), "state": str(place / "state")},
    }
    (place / "settings.yaml").write_text(json.dumps(settings))
    return main(["plan", str(place / "settings.yaml")])
