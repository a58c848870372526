"""The identity of a verifier by role: what changes which digest, packed experts included."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from artifacts.code_digest import closure, module_file
from kimi_adapters.tensor_file import TensorFile
from kimi_adapters.tiny_checkpoint import make
from kimi_adapters.tiny_config import Options
from kimi_adapters.torch_file import read_tensors, write_tensors
from tasks.verifier import describe

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("kimi"))


def copied(source: Path, folder: Path) -> Path:
    for path in source.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def changed_roles(made: Path, folder: Path) -> set[str]:
    before, after = describe(made)["roles"], describe(folder)["roles"]
    assert set(before) == set(after) == {"embed", "layer", "lm_head", "norm", "numbers", "tokenizer"}
    return {role for role in before if before[role] != after[role]}


def flip(name: str) -> Callable[[dict[str, Any]], None]:
    """Turns the lowest bit of a tensor's first byte."""

    def change(tensors: dict[str, Any]) -> None:
        if name in tensors:
            tensors[name].view(-1)[:1].view(torch.uint8)[0] ^= 1

    return change


LAYER = "language_model.model.layers"
TENSORS = {
    f"{LAYER}.6.mlp.experts.3.up_proj.weight_packed": {"layer"},
    f"{LAYER}.6.mlp.experts.3.up_proj.weight_scale": {"layer"},
    f"{LAYER}.2.mlp.gate.e_score_correction_bias": {"layer"},
    f"{LAYER}.0.self_attn.kv_a_layernorm.weight": {"layer"},
    "language_model.model.embed_tokens.weight": {"embed"},
    "language_model.model.norm.weight": {"norm"},
    "language_model.lm_head.weight": {"lm_head"},
    "vision_tower.encoder.blocks.0.wqkv.weight": set(),
    "mm_projector.proj.0.weight": set(),
}


@pytest.mark.parametrize("name", TENSORS)
def test_one_bit_of_a_tensor_changes_its_role_alone(made: Path, tmp_path: Path, name: str) -> None:
    copied(made, tmp_path)
    for path in tmp_path.glob("*.safetensors"):
        with TensorFile(path) as file:
            tensors = read_tensors(file)
        if name in tensors:
            flip(name)(tensors)
            with open(path, "wb") as out:
                write_tensors(out, tensors)
    assert changed_roles(made, tmp_path) == TENSORS[name]


def edit(folder: Path, path: list[str], value: Any) -> None:
    values = inner = json.loads((folder / "config.json").read_text())
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    (folder / "config.json").write_text(json.dumps(values))


def test_numbers_tokens_and_other_files(made: Path, tmp_path: Path) -> None:
    copied(made, tmp_path)
    (tmp_path / "README.md").write_text("Edited.")
    edit(tmp_path, ["vision_config", "hidden_size"], 64)
    assert changed_roles(made, tmp_path) == set()
    edit(tmp_path, ["text_config", "routed_scaling_factor"], 1.0)
    assert changed_roles(made, tmp_path) == {"numbers"}
    (tmp_path / "tiktoken.model").write_bytes((tmp_path / "tiktoken.model").read_bytes() + b"\n")
    assert changed_roles(made, tmp_path) == {"numbers", "tokenizer"}


def test_the_same_content_has_one_identity(made: Path, tmp_path: Path) -> None:
    """In other files, with the quantization at the other place."""
    make(tmp_path, Options(files=3, quantization_at="top"))
    assert describe(made) == describe(tmp_path)


def test_facts_count_parameters_that_are_packed(made: Path, tmp_path: Path) -> None:
    facts = describe(made)
    experts = 6 * 16 * 3 * 128 * 64
    plain = describe(make(tmp_path, Options(layout="deepseek_v3")))
    assert facts["family"] == "deepseek_v3" and experts < facts["parameters"] == plain["parameters"]
    assert facts["num_layers"] == 7 and facts["vocab_size"] == 1280 and facts["max_length"] == 4096


def test_stages_reach_neither_the_maker_nor_its_libraries() -> None:
    reached = closure(ROOT, "tasks.hidden_states")
    assert {"kimi_adapters.deepseek", "kimi_adapters.int4", "kimi_adapters.moe"} <= set(reached)
    for stage in ("hidden_states", "training", "corpus", "acceptance", "synthesis", "vocabulary", "validation", "verifier"):
        assert not {"kimi_adapters.tiny_checkpoint", "kimi_adapters.tiny_tokenizer"} & set(closure(ROOT, f"tasks.{stage}")), (
            stage
        )
    for module in reached:
        path = module_file(ROOT, module)
        assert path is not None
        source = path.read_text()
        for library in ("transformers", "compressed_tensors", "tiktoken", "tokenizers", "speculators"):
            assert f"import {library}" not in source and f"from {library} import" not in source, (module, library)
