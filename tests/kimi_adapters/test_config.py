"""What config.json may say, and how a wrong one is told."""

import json
from pathlib import Path
from typing import Any

import pytest

from errors import UserError
from kimi_adapters.config import numeric_identity, read_config
from kimi_adapters.llama_config import Llama3Scaling, LlamaConfig
from tests.kimi_adapters.llama_fixtures import LLAMA3_ROPE, SIZES

LLAMA = {"model_type": "llama", **SIZES}


def read(folder: Path, values: dict[str, Any]) -> LlamaConfig:
    (folder / "config.json").write_text(json.dumps(values))
    config = read_config(folder)
    assert isinstance(config, LlamaConfig)
    return config


def test_both_spellings_of_rotary_settings(tmp_path: Path) -> None:
    old = read(tmp_path, {**LLAMA, "rope_theta": 5e5, "rope_scaling": LLAMA3_ROPE})
    new = read(tmp_path, {**LLAMA, "rope_parameters": {**LLAMA3_ROPE, "rope_theta": 500000}})
    assert old == new and old.rope_scaling == Llama3Scaling(8.0, 1.0, 4.0, 64) and old.rope_theta == 5e5
    older = read(tmp_path, {**LLAMA, "rope_theta": 5e5, "rope_scaling": {**LLAMA3_ROPE, "type": "llama3"}})
    assert older == old
    assert read(tmp_path, {**LLAMA, "rope_theta": 1e4, "rope_scaling": None}).rope_scaling is None


def test_defaults_follow_transformers(tmp_path: Path) -> None:
    left_out = ("head_dim", "num_key_value_heads", "attention_bias", "mlp_bias", "tie_word_embeddings")
    values = {name: value for name, value in LLAMA.items() if name not in left_out}
    config = read(tmp_path, {**values, "rope_theta": 1e4, "eos_token_id": [1, 2]})
    assert (config.head_dim, config.num_kv_heads) == (48 // 4, 4)
    assert not (config.attention_bias or config.mlp_bias or config.tie_word_embeddings)
    assert config.eos_token_ids == (1, 2) and config.pad_token_id is None


def test_identity_holds_numbers_that_states_depend_on_and_no_others(tmp_path: Path) -> None:
    base = {**LLAMA, "rope_theta": 1e4}
    identity = numeric_identity(read(tmp_path, base))
    assert json.loads(json.dumps(identity)) == identity
    same = {"eos_token_id": 7, "vocab_size": 5, "tie_word_embeddings": True, "max_position_embeddings": 9, "_name": "x"}
    assert numeric_identity(read(tmp_path, {**base, **same})) == identity
    for name, value in {"rms_norm_eps": 1e-6, "rope_theta": 2e4, "num_key_value_heads": 1, "head_dim": 8}.items():
        assert numeric_identity(read(tmp_path, {**base, name: value})) != identity, name


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model_type": "qwen2"}, "family 'qwen2'; supported: llama"),
        ({"hidden_size": None}, "has no 'hidden_size'"),
        ({"hidden_size": "48"}, "'hidden_size' = '48'"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_type 'yarn'; supported: default, llama3"),
        ({"num_key_value_heads": 3}, "impossible head"),
    ],
)
def test_a_wrong_configuration_is_told_in_one_sentence(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        read(tmp_path, {**LLAMA, "rope_theta": 1e4, **change})


def test_a_missing_directory_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="give a verifier directory"):
        read_config(tmp_path / "nowhere")
