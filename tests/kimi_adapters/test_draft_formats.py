"""The two formats of an export against what the engines' loaders expect of them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from kimi_adapters.draft_formats import sglang_config, sglang_names, vllm_config
from kimi_adapters.draft_vocabulary import DraftVocabulary
from kimi_adapters.published_draft import PublishedDraft, read_published
from tests.kimi_adapters.draft_fixtures import LAYER_IDS, VOCABULARY
from tests.kimi_adapters.published_fixtures import layer_values, nested_values, published_tensors, write_draft
from tests.kimi_adapters.sglang_loader import load

YARN = {"rope_type": "yarn", "rope_theta": 5e4, "factor": 64.0, "original_max_position_embeddings": 4096}
FLAGS = {"fc_norm": True, "norm_output": True, "norm_before_residual": False}
WHOLE = DraftVocabulary(97, 97)
DRAFTS: dict[str, tuple[dict[str, Any], dict[str, Any], DraftVocabulary, int]] = {
    "plain": ({"norm_before_residual": False}, {}, VOCABULARY, 1),
    "flags and layers": (FLAGS, {"num_hidden_layers": 2}, VOCABULARY, 2),
    "one norm before fc": ({"norm_before_residual": False, "norm_before_fc": True}, {}, VOCABULARY, 1),
    "YaRN of 1": ({"norm_before_residual": False}, {"rope_parameters": {**YARN, "attention_factor": 1.0}}, VOCABULARY, 1),
    "YaRN": ({"norm_before_residual": False}, {"rope_parameters": YARN}, VOCABULARY, 1),
    "the whole vocabulary": ({"norm_before_residual": False, "draft_vocab_size": 97}, {}, WHOLE, 1),
}


def draft(folder: Path, name: str) -> PublishedDraft:
    """One of DRAFTS, as we hold it."""
    own, layer, vocabulary, layers = DRAFTS[name]
    tensors = published_tensors(vocabulary, layers)
    tensors |= {f"fc_norm.{i}.weight": torch.full((32,), 1.0 + i) for i in range(3)} if own.get("fc_norm") else {}
    tensors |= {"input_norm.weight": torch.ones(96)} if own.get("norm_before_fc") else {}
    return read_published(write_draft(folder, nested_values(transformer_layer_config=layer_values(**layer), **own), tensors))


def same(one: PublishedDraft, other: PublishedDraft) -> bool:
    differing = {"speculators_config", "speculators_version"}
    configs = [{name: value for name, value in each.config.items() if name not in differing} for each in (one, other)]
    equal = all(torch.equal(one.tensors[name], other.tensors[name]) for name in one.tensors)
    return configs[0] == configs[1] and one.tensors.keys() == other.tensors.keys() and equal


@pytest.mark.parametrize("name", DRAFTS)
def test_sglangs_loader_takes_every_tensor_and_every_setting(tmp_path: Path, name: str) -> None:
    ours = draft(tmp_path / "ours", name)
    folder = write_draft(tmp_path / "sglang", sglang_config(ours.config, "bfloat16"), sglang_names(ours.tensors))
    loaded = load(folder)
    assert loaded.dropped == [] and loaded.unfilled == []
    assert loaded.captured(deepseek=False) == LAYER_IDS
    assert loaded.dtypes == {torch.bfloat16} and loaded.config["torch_dtype"] == "bfloat16"
    expected = None if ours.vocabulary is None else ours.vocabulary.targets().tolist()
    assert (None if loaded.hot_token_id is None else loaded.hot_token_id.tolist()) == expected
    assert loaded.config["tie_word_embeddings"] is False and "target_hidden_size" not in loaded.config
    flags = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    assert {flag for flag in flags if loaded.config.get(flag)} == {flag for flag in flags if ours.config[flag]}
    # SGLang takes its rotary settings from transformers' configuration.
    kept = LlamaConfig(**{key: value for key, value in loaded.config.items() if key != "eagle_config"}).rope_parameters
    rope = ours.config["transformer_layer_config"]["rope_parameters"]
    scales = {"mscale": 1.0, "mscale_all_dim": 1.0} if rope.get("attention_factor") == 1.0 else {}
    assert kept == {**{key: value for key, value in rope.items() if key != "attention_factor"}, **scales}
    assert same(read_published(folder), ours)


def test_layers_that_sglang_would_not_find_are_told_by_its_loader(tmp_path: Path) -> None:
    """The loader of this test is able to fail: names and ids of vLLM's format do not pass."""
    ours = draft(tmp_path / "ours", "flags and layers")
    values = sglang_config(ours.config, "bfloat16")
    values["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = LAYER_IDS
    unshifted = {name.replace("layers.", "blocks."): tensor for name, tensor in ours.tensors.items()}
    loaded = load(write_draft(tmp_path / "sglang", values, unshifted))
    assert "blocks.0.hidden_norm.weight" in loaded.dropped and "model.layers.0.self_attn.qkv_proj.weight" in loaded.unfilled
    assert loaded.captured(deepseek=False) != LAYER_IDS
    named = load(write_draft(tmp_path / "unnamed", sglang_config(ours.config, "bfloat16"), ours.tensors))
    assert named.unfilled == ["model.layers.1.hidden_norm.weight"]


def test_kimis_ids_are_captured_where_they_were_trained(tmp_path: Path) -> None:
    ours = draft(tmp_path / "ours", "plain")
    ours.config["eagle_aux_hidden_state_layer_ids"] = [2, 30, 58]
    loaded = load(write_draft(tmp_path / "sglang", sglang_config(ours.config, "bfloat16"), sglang_names(ours.tensors)))
    assert loaded.captured(deepseek=True) == loaded.captured(deepseek=False) == [2, 30, 58]
    assert loaded.config["eagle_aux_hidden_state_layer_ids"] == [2, 30, 58], "vLLM reads these first"


@pytest.mark.parametrize("name", DRAFTS)
def test_vllms_directory_is_clean_and_comes_back(tmp_path: Path, name: str) -> None:
    ours = draft(tmp_path / "ours", name)
    ours.config.update({"auto_map": {"": "config.x"}, "_name_or_path": "/home/someone/draft"})
    ours.config["transformer_layer_config"]["_name_or_path"] = "/home/someone/verifier"
    values = vllm_config(ours.config, "bfloat16", "org/verifier", "deepseek_v3")
    assert "someone" not in json.dumps(values) and "auto_map" not in values
    assert values["speculators_config"]["verifier"] == {
        "name_or_path": "org/verifier",
        "architectures": ["DeepseekV3ForCausalLM"],
    }
    assert values["transformer_layer_config"]["num_aux_hidden_states"] == 3
    folder = write_draft(tmp_path / "vllm", values, ours.tensors)
    for stray in ("auto_map", "_name_or_path"):
        del ours.config[stray]
    del ours.config["transformer_layer_config"]["_name_or_path"]
    assert same(read_published(folder), ours)
