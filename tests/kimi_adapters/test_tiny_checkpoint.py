"""The published layout as the maker writes it and as we read it, and how a broken checkpoint is told."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from errors import UserError
from kimi_adapters.deepseek_config import DeepseekConfig
from kimi_adapters.int4 import unpack
from kimi_adapters.tensor_file import TensorFile
from kimi_adapters.tensor_names import role_of
from kimi_adapters.tiny_checkpoint import main, make
from kimi_adapters.tiny_config import Options
from kimi_adapters.torch_file import read_tensors, write_tensors
from kimi_adapters.verifier import Verifier
from kimi_adapters.weights import INDEX, Checkpoint, text_entries
from tests.kimi_adapters.deepseek_fixtures import ours, shard_of, stored_tensors, unpacked_by_compressed_tensors

EXPERT = "language_model.model.layers.{}.mlp.experts.{}.{}_proj"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("kimi"))


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    for path in made.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def rewrite(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes the tensors of every file in place; the index follows."""
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with TensorFile(path) as file:
            tensors = read_tensors(file)
        change(tensors)
        with open(path, "wb") as out:
            write_tensors(out, tensors)
        index["weight_map"] |= dict.fromkeys(tensors, path.name)
    (folder / INDEX).write_text(json.dumps(index))


def edit_config(folder: Path, **changes: Any) -> None:
    values = json.loads((folder / "config.json").read_text())
    values["text_config"].update(changes)
    (folder / "config.json").write_text(json.dumps(values))


def test_the_layout_is_the_published_one(made: Path) -> None:
    tensors = stored_tensors(made)
    name = EXPERT.format(3, 15, "gate")
    assert tensors[f"{name}.weight_packed"].shape == (64, 16) and tensors[f"{name}.weight_packed"].dtype == torch.int32
    assert tensors[f"{name}.weight_scale"].shape == (64, 4) and tensors[f"{name}.weight_scale"].dtype == torch.bfloat16
    assert tensors[f"{name}.weight_shape"].tolist() == [64, 128] and tensors[f"{name}.weight_shape"].dtype == torch.int32
    assert tensors["language_model.model.layers.1.mlp.gate.e_score_correction_bias"].dtype == torch.float32
    assert "language_model.model.layers.0.mlp.gate_proj.weight" in tensors
    assert len(list(made.glob("*.safetensors"))) == 4
    assert sum(path.stat().st_size for path in made.iterdir()) < 5e6


def test_the_same_seed_gives_the_same_bytes(made: Path, tmp_path: Path) -> None:
    again, other = make(tmp_path / "again"), make(tmp_path / "other", Options(seed=1))
    same = {path.name: path.read_bytes() == (again / path.name).read_bytes() for path in made.iterdir()}
    assert all(same.values()), same
    first = "model-00001-of-000004.safetensors"
    assert (made / first).read_bytes() != (other / first).read_bytes()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_unpacking_is_bit_exact(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = stored_tensors(make(tmp_path, Options(shape_dtype=dtype)))
    for layer, part in ((1, "gate"), (4, "up"), (6, "down")):
        name = EXPERT.format(layer, 5, part)
        mine = unpack(tensors[f"{name}.weight_packed"], tensors[f"{name}.weight_scale"])
        theirs = unpacked_by_compressed_tensors(tensors, name)
        assert mine.dtype == theirs.dtype == torch.bfloat16 and torch.equal(mine, theirs)
    # Every nibble in every place, scales of the other dtypes too.
    words = torch.randint(-(2**31), 2**31, (3, 64, 8), generator=torch.Generator().manual_seed(1)).int()
    for scale_dtype in (torch.bfloat16, torch.float16, torch.float32):
        scale = torch.rand(3, 64, 2, generator=torch.Generator().manual_seed(2)).to(scale_dtype)
        stored = {"x.weight_packed": words[1], "x.weight_scale": scale[1], "x.weight_shape": torch.tensor([64, 64])}
        assert torch.equal(unpack(words, scale)[1], unpacked_by_compressed_tensors(stored, "x"))


def test_text_tensors_have_a_role_and_others_are_left_out(made: Path) -> None:
    entries = text_entries(made)
    assert Checkpoint(made).left_out == {"vision_tower": 4, "mm_projector": 2}
    names = {name for _, name, _, _ in entries}
    assert len(names) == len(stored_tensors(made)) - 6 and not any("vision" in name or "mm_" in name for name in names)
    assert {f"layers.6.mlp.experts.15.down_proj.weight_{part}" for part in ("packed", "scale", "shape")} <= names
    assert role_of("vision_tower.encoder.final_layernorm.weight") is role_of("mm_projector.proj.0.weight") is None


def test_layers_that_predict_further_tokens_are_left_out(tmp_path: Path) -> None:
    make(tmp_path, Options(layout="deepseek_v3"))
    checkpoint = Checkpoint(tmp_path)
    assert not any(name.startswith("layers.7.") for name in checkpoint.names)
    further = sum(name.startswith("model.layers.7.") for name in stored_tensors(tmp_path))
    assert further > 50 and checkpoint.left_out == {"layers.7": further}


def test_kimi_does_not_decode_here(made: Path) -> None:
    with pytest.raises(UserError, match="does not decode here; take answers and acceptance from an engine's endpoint"):
        Verifier(Checkpoint(made))


def drop(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda tensors: tensors.pop(name, None)


def replaced(name: str, value: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, Any]], None]:
    def change(tensors: dict[str, Any]) -> None:
        if name in tensors:
            tensors[name] = value(tensors[name])

    return change


def added(name: str, beside: str) -> Callable[[dict[str, Any]], None]:
    def change(tensors: dict[str, Any]) -> None:
        if beside in tensors:
            tensors[name] = torch.zeros(3)

    return change


CORRECTION = "language_model.model.layers.4.mlp.gate.e_score_correction_bias"
PACKED = EXPERT.format(6, 15, "down") + ".weight_packed"
SCALE = EXPERT.format(2, 0, "up") + ".weight_scale"
ZERO_POINT = EXPERT.format(2, 0, "up") + ".weight_zero_point"
BROKEN = {
    "an expert of the last layer is missing": (drop(PACKED), "no tensor 'layers.6.mlp.experts.15.down_proj.weight_packed'"),
    "no final norm": (drop("language_model.model.norm.weight"), "no tensor 'norm.weight'"),
    "no head": (drop("language_model.lm_head.weight"), "no tensor 'lm_head.weight'"),
    "scales of other groups": (
        replaced(SCALE, lambda t: t[:, :2]),
        r"BF16 \[64, 2\] where its config.json makes it .* \[64, 4\]",
    ),
    "a cast of all weights to bfloat16": (
        replaced(CORRECTION, lambda t: t.bfloat16()),
        "correction_bias' as BF16, rounded by a cast of all weights, .*; take the checkpoint as published, where it is F32",
    ),
    "a correction of other experts": (replaced(CORRECTION, lambda t: t[:8]), r"F32 \[8\] where .* F32 \[16\]"),
    "packed as bytes": (replaced(PACKED, lambda t: t.view(torch.uint8)), r"as U8 \[128, 32\] where .* I32 \[128, 8\]"),
    "zero points": (added(ZERO_POINT, SCALE), "up_proj.weight_zero_point', which its config.json does not account for"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_checkpoint_is_told_at_opening(copy: Path, case: str) -> None:
    change, told = BROKEN[case]
    rewrite(copy, change)
    with pytest.raises(UserError, match=told) as error:
        Checkpoint(copy)
    assert "\n" not in str(error.value)


def test_missing_and_truncated_files_are_told(copy: Path) -> None:
    second = copy / "model-00002-of-000004.safetensors"
    whole = second.read_bytes()
    second.write_bytes(whole[:-1])
    with pytest.raises(UserError, match="00002-of-000004.safetensors is not a whole safetensors file"):
        Checkpoint(copy)
    second.unlink()
    with pytest.raises(UserError, match="lacks model-00002-of-000004.safetensors"):
        Checkpoint(copy)
    second.write_bytes((copy / "model-00003-of-000004.safetensors").read_bytes())
    with pytest.raises(UserError, match=f"00002-of-000004.safetensors lacks 'language_model.*', which {INDEX} says it has"):
        Checkpoint(copy)


def test_a_configuration_that_does_not_fit_the_files_is_told(copy: Path) -> None:
    quantization = json.loads((copy / "config.json").read_text())["text_config"]["quantization_config"]
    edit_config(copy, quantization_config={**quantization, "ignore": [*quantization["ignore"], "re:.*experts.*"]})
    with pytest.raises(UserError, match=r"no tensor 'layers.1.mlp.experts.0.gate_proj.weight' and has .*weight_packed'"):
        Checkpoint(copy)
    edit_config(copy, quantization_config={**quantization, "ignore": quantization["ignore"][:2]})
    with pytest.raises(UserError, match="covers model.layers.0.mlp.gate_proj, and only routed experts are read packed"):
        Checkpoint(copy)
    edit_config(copy, quantization_config={**quantization, "ignore": [*quantization["ignore"], r"re:.*experts\.3\..*"]})
    with pytest.raises(UserError, match="covers some experts of layer 1 and not others"):
        Checkpoint(copy)
    edit_config(copy, quantization_config=quantization, num_hidden_layers=8)
    with pytest.raises(UserError, match="weights of 7 layers where its config.json says 8"):
        Checkpoint(copy)


def test_a_weight_shape_that_lies_is_told(copy: Path) -> None:
    rewrite(copy, replaced(EXPERT.format(1, 0, "up") + ".weight_shape", lambda t: t.flip(0)))
    with pytest.raises(UserError, match=r"weight_shape' = \[128, 64\] where its config.json makes it \[64, 128\]"):
        ours([shard_of([3], 100, 0)], copy, [1])


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["tiny_checkpoint", str(tmp_path), "--wide-latents", "--fast-tokenizer"])
    main()
    assert "a tiny kimi_k25 of" in capsys.readouterr().out
    config = Checkpoint(tmp_path).config
    assert isinstance(config, DeepseekConfig) and (config.kv_lora_rank, config.qk_rope_head_dim) == (512, 64)
    assert (tmp_path / "tokenizer.json").exists()
