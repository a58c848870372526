import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from speculators.models.eagle3 import Eagle3DraftModel

from errors import UserError
from kimi_adapters.draft import VerifierRows, build_draft, draft_config, draft_config_values, save_draft, trainable_state
from kimi_adapters.draft_vocabulary import DraftVocabulary
from kimi_adapters.llama_config import Llama3Scaling
from kimi_adapters.recipe import Recipe
from kimi_adapters.tensor_file import TensorFile
from tests.kimi_adapters.draft_fixtures import (
    LAYER_IDS,
    VERIFIER,
    VOCABULARY,
    generator,
    outputs_in,
    save,
    verifier_tensors,
)
from tests.kimi_adapters.draft_models import FLAG_SETS, FLAGS, flag_name, tiny_draft, tiny_rows

# What config.json of Kimi-K2.5 would bring: a rotary part of 64 for a head, YaRN, ids far from Llama's defaults.
KIMI_LIKE = replace(
    VERIFIER, head_dim=64, rope_theta=50000.0, bos_token_id=90, eos_token_ids=(91, 93), pad_token_id=95,
    max_position_embeddings=262144, rope_scaling=Llama3Scaling(8.0, 1.0, 4.0, 4096),
)  # fmt: skip


def test_the_configuration_is_explicit_and_nothing_leaks_from_the_verifier() -> None:
    recipe = Recipe(num_heads=8, head_dim=16, intermediate_size=24, ttt_steps=4)
    config = draft_config(recipe, KIMI_LIKE, LAYER_IDS, 39, "sdpa")
    layer = config.transformer_layer_config
    assert (layer.num_attention_heads, layer.num_key_value_heads, layer.head_dim) == (8, 8, 16)
    assert (layer.intermediate_size, layer.num_hidden_layers, layer.hidden_size) == (24, 1, 32)
    assert layer.rope_parameters == {"rope_type": "default", "rope_theta": 50000.0}
    assert (layer.bos_token_id, layer.eos_token_id, layer.pad_token_id) == (90, [91, 93], 95)
    assert layer.max_position_embeddings == 262144
    assert layer.model_type == "llama" and not getattr(layer, "sliding_window", None)
    assert layer._attn_implementation == "sdpa"
    assert config.eagle_aux_hidden_state_layer_ids == LAYER_IDS
    assert config.speculators_config.proposal_methods[0].speculative_tokens == 4


@pytest.mark.parametrize("flags", FLAG_SETS, ids=flag_name)
def test_each_norm_flag_is_the_recipes(flags: dict[str, Any]) -> None:
    config = draft_config(Recipe(**flags), VERIFIER, LAYER_IDS, 39, "sdpa")
    assert {name: getattr(config, name) for name in FLAGS} == flags
    assert {name: draft_config_values(config, torch.float32)[name] for name in FLAGS} == flags


def test_a_shape_left_open_is_the_verifiers() -> None:
    layer = draft_config(Recipe(), VERIFIER, LAYER_IDS, 39, "sdpa").transformer_layer_config
    assert (layer.num_attention_heads, layer.num_key_value_heads, layer.head_dim, layer.intermediate_size) == (4, 2, 8, 48)


def test_impossible_shapes_are_refused() -> None:
    with pytest.raises(UserError, match="98 tokens, the verifier's 97"):
        draft_config(Recipe(), VERIFIER, LAYER_IDS, 98, "sdpa")
    with pytest.raises(UserError, match="divide"):
        draft_config(Recipe(num_kv_heads=3), VERIFIER, LAYER_IDS, 39, "sdpa")
    narrow = VerifierRows(*(tensor[..., :16] for tensor in verifier_tensors()))
    with pytest.raises(UserError, match="embed_tokens"):
        build_draft(draft_config(Recipe(), VERIFIER, LAYER_IDS, 39, "sdpa"), narrow, VOCABULARY, 0)


def test_verifier_rows_are_where_the_offset_points_and_frozen() -> None:
    model = tiny_draft(spread=0.0)
    embed, norm, head = verifier_tensors()
    picked = head[torch.tensor(range(3, 80, 2))]
    for weight, expected in (
        (model.lm_head.weight, picked),
        (model.verifier_lm_head.weight, picked),
        (model.embed_tokens.weight, embed),
        (model.verifier_norm.weight, norm),
    ):
        assert torch.equal(weight, expected) and not weight.requires_grad
    assert all(torch.isfinite(tensor).all() for tensor in model.state_dict().values())
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == set(trainable_state(model)) and "fc.weight" in trained and "norm.weight" in trained


def test_the_seed_alone_decides_the_start_and_the_callers_random_state_is_left_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = trainable_state(tiny_draft(spread=0.0))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    again = trainable_state(tiny_draft(spread=0.0))
    config = draft_config(Recipe(), VERIFIER, LAYER_IDS, VOCABULARY.size, "sdpa")
    other = trainable_state(build_draft(config, tiny_rows(), VOCABULARY, seed=1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["fc.weight"], other["fc.weight"])


def test_the_fusing_layer_can_begin_by_handing_on_the_last_state() -> None:
    config = draft_config(Recipe(), VERIFIER, LAYER_IDS, VOCABULARY.size, "sdpa")
    model = build_draft(config, tiny_rows(), VOCABULARY, 0, fc_start="last")
    states = torch.randn(50, len(LAYER_IDS), VERIFIER.hidden_size, generator=generator(1))
    fused = model.fc(states.flatten(1))
    assert [torch.nn.functional.cosine_similarity(fused, states[:, i]).mean() > 0.9 for i in range(3)] == [False, False, True]
    plain, found = trainable_state(tiny_draft(spread=0.0)), trainable_state(model)
    assert [name for name in plain if not torch.equal(plain[name], found[name])] == ["fc.weight"]
    child = trainable_state(build_draft(config, tiny_rows(), VOCABULARY, 0, plain, fc_start="last"))
    assert torch.equal(child["fc.weight"], plain["fc.weight"]), "a parent's stays"


def test_a_parent_draft_gives_its_tensors() -> None:
    parent = {name: value + 1 for name, value in trainable_state(tiny_draft()).items()}
    config = draft_config(Recipe(), VERIFIER, LAYER_IDS, VOCABULARY.size, "sdpa")
    child = trainable_state(build_draft(config, tiny_rows(), VOCABULARY, 0, parent))
    assert all(torch.equal(child[name], parent[name]) for name in child)
    with pytest.raises(UserError, match="parent draft"):
        build_draft(config, tiny_rows(), VOCABULARY, 0, {**parent, "fc.weight": torch.zeros(2, 2)})


def test_saved_twice_the_same_bytes_and_a_clean_configuration(tmp_path: Path) -> None:
    model = tiny_draft()
    for name in ("a", "b"):
        save_draft(model, outputs_in(tmp_path / name))
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["config.json", "model.safetensors"]
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert "auto_map" not in json.dumps(config) and "_name_or_path" not in json.dumps(config)
    assert config["transformer_layer_config"]["rms_norm_eps"] == 1e-5
    with TensorFile(tmp_path / "a" / "model.safetensors") as file:
        assert {"d2t", "t2d", "embed_tokens.weight", "lm_head.weight"} <= file.entries.keys()
        assert not any(name.startswith("verifier") for name in file.entries)
        assert file.entries["d2t"].dtype == "I64" and file.entries["t2d"].dtype == "BOOL"


def test_equal_vocabularies_leave_the_maps_out(tmp_path: Path) -> None:
    model = tiny_draft(vocabulary=DraftVocabulary(97, 97))
    save_draft(model, outputs_in(tmp_path), torch.bfloat16)
    with TensorFile(tmp_path / "model.safetensors") as file:
        assert not {"d2t", "t2d"} & file.entries.keys()
        assert {entry.dtype for entry in file.entries.values()} == {"BF16"}
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(num_layers=2, norm_output=True, norm_before_fc=True),
        Recipe(layer="qwen3", num_layers=2, head_dim=16, train_lm_head=True, train_embeddings=True),
    ],
    ids=["llama", "qwen3, own head and embeddings"],
)
def test_speculators_reloads_what_we_save_and_drafts_the_same(tmp_path: Path, recipe: Recipe) -> None:
    # Without the name of a verifier that it can open, speculators' reload asks the model hub for "None".
    model = tiny_draft(recipe, verifier_name=str(verifier_directory(tmp_path / "verifier"))).eval()
    save_draft(model, outputs_in(tmp_path / "draft"))
    reloaded = Eagle3DraftModel.from_pretrained(tmp_path / "draft", dtype=torch.float32).eval()
    assert torch.equal(reloaded.verifier_lm_head.weight, model.verifier_lm_head.weight)
    # The attention is never saved, and a reload takes flex, which runs on a CPU without gradients.
    assert reloaded._attn_impl == "simple_flex_attention"
    assert reloaded.config.eagle_aux_hidden_state_layer_ids == LAYER_IDS
    source = generator(1)
    batch = {
        "hidden_states": torch.randn(1, 128, 96, generator=source),
        "input_ids": torch.randint(0, 97, (1, 128), generator=source),
        "document_ids": torch.zeros(1, 128, dtype=torch.int64),
    }
    with torch.no_grad():
        ours, theirs = model(**batch), reloaded(**batch)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    saved = json.loads((tmp_path / "draft" / "config.json").read_text())
    assert saved["transformer_layer_config"]["model_type"] == recipe.layer
    assert saved["embed_requires_grad"] is recipe.train_embeddings
    assert not getattr(reloaded.config.transformer_layer_config, "sliding_window", None) and reloaded.uses_full_attn


def verifier_directory(directory: Path) -> Path:
    """As much of a verifier as speculators' reload reads."""
    embed, norm, head = verifier_tensors()
    names = {"model.embed_tokens.weight": embed, "model.norm.weight": norm, "lm_head.weight": head}
    directory.mkdir()
    save(directory / "model.safetensors", names)
    values = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "vocab_size": 97}
    values |= {"num_hidden_layers": 6, "num_attention_heads": 4}
    (directory / "config.json").write_text(json.dumps(values))
    return directory
