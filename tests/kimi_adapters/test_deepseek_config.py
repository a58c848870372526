"""What a DeepSeek-V3's or Kimi's config.json may say, and how a wrong one is told."""

import json
import math
from copy import deepcopy
from typing import Any

import pytest
import torch
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding

from errors import UserError
from kimi_adapters.config import numeric_identity, parse_config
from kimi_adapters.deepseek_config import DeepseekConfig, YarnScaling
from kimi_adapters.layer_ids import default_layer_ids
from kimi_adapters.tiny_config import IGNORE, Options, config_values
from kimi_adapters.yarn import inverse_frequencies, rope_tables

# The text part of Kimi-K2.5's config.json (shared/reference/kimi_k25.md).
PUBLISHED: dict[str, Any] = {
    "model_type": "kimi_k2", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 64,
    "num_key_value_heads": 64, "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 384,
    "num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "vocab_size": 163840, "max_position_embeddings": 262144, "rms_norm_eps": 1e-5, "scoring_func": "sigmoid",
    "topk_method": "noaux_tc", "routed_scaling_factor": 2.827, "norm_topk_prob": True, "tie_word_embeddings": False,
    "rope_theta": 50000.0, "bos_token_id": 163584, "eos_token_id": 163585, "pad_token_id": 163839,
    "rope_scaling": {
        "type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0, "beta_slow": 1.0,
        "mscale": 1.0, "mscale_all_dim": 1.0,
    },
    "quantization_config": config_values(Options())["text_config"]["quantization_config"],
}  # fmt: skip


def parse(values: dict[str, Any]) -> DeepseekConfig:
    config = parse_config(values, "config.json")
    assert isinstance(config, DeepseekConfig)
    return config


def edited(**changes: Any) -> dict[str, Any]:
    return {**PUBLISHED, **changes}


def quantized(**changes: Any) -> dict[str, Any]:
    """The published values with changes to the one group's weights."""
    values = json.loads(json.dumps(PUBLISHED))
    values["quantization_config"]["config_groups"]["group_0"]["weights"].update(changes)
    return dict(values)


def test_the_published_configuration() -> None:
    config = parse({"model_type": "kimi_k25", "text_config": PUBLISHED, "vision_config": {"hidden_size": 1152}})
    assert (config.family, config.hidden_size, config.num_layers, config.vocab_size) == ("deepseek_v3", 7168, 61, 163840)
    assert (config.q_lora_rank, config.kv_lora_rank, config.qk_head_dim, config.v_head_dim) == (1536, 512, 192, 128)
    assert (config.num_experts, config.experts_per_token, config.first_dense_layers) == (384, 8, 1)
    # A draft takes its heads from here: 64 of 128, as published drafts have them, not of the 64 rotary dimensions.
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (64, 64, 128)
    assert config.eos_token_ids == (163585,) and config.bos_token_id == 163584 and config.pad_token_id == 163839
    assert isinstance(config.rope_scaling, YarnScaling) and config.rope_scaling.attention_factor == 1.0
    assert math.isclose(config.softmax_scale, 192**-0.5 * (0.1 * math.log(64) + 1) ** 2)
    assert default_layer_ids(config.num_layers) == [2, 30, 58]


@pytest.mark.parametrize("model_type", ["kimi_k2", "deepseek_v3", "kimi_k25"])
def test_the_family_has_several_names(model_type: str) -> None:
    assert parse(edited(model_type=model_type)) == parse(PUBLISHED)


def test_quantization_stands_inside_or_outside() -> None:
    text = {name: value for name, value in PUBLISHED.items() if name != "quantization_config"}
    outside = parse({"text_config": text, "quantization_config": PUBLISHED["quantization_config"]})
    assert outside == parse({"text_config": PUBLISHED}) and outside.expert_group_size == 32
    assert parse({"text_config": text}).quantization is None


def test_the_ignore_list_is_honoured() -> None:
    quantization = parse(PUBLISHED).quantization
    assert quantization and quantization.ignore == tuple(IGNORE)
    layer = "model.layers.3"
    assert quantization.covers(f"{layer}.mlp.experts.7.up_proj") and quantization.covers(f"{layer}.mlp.experts.0.down_proj")
    for name in ("self_attn.o_proj", "mlp.shared_experts.up_proj", "mlp.gate_proj", "mlp.down_proj"):
        assert not quantization.covers(f"{layer}.{name}"), name
    assert not quantization.covers("lm_head") and not quantization.covers("language_model.lm_head")


YARNS = {
    "published": PUBLISHED["rope_scaling"],
    "unequal mscales": {**PUBLISHED["rope_scaling"], "mscale": 0.7, "mscale_all_dim": 0.4},
    "no mscale": {"type": "yarn", "factor": 16.0, "original_max_position_embeddings": 2048},
    "untruncated": {**PUBLISHED["rope_scaling"], "beta_fast": 20.0, "truncate": False},
    "narrow": {**PUBLISHED["rope_scaling"], "original_max_position_embeddings": 64},
    "plain": None,
}


@pytest.mark.parametrize("case", YARNS)
def test_rotary_positions_equal_transformers(case: str) -> None:
    values = edited(rope_scaling=YARNS[case], num_hidden_layers=1, hidden_size=64, n_routed_experts=8)
    values.pop("quantization_config")
    config = parse(values)
    theirs = DeepseekV3Config(**deepcopy({name: value for name, value in values.items() if name != "model_type"}))
    rotary = DeepseekV3RotaryEmbedding(theirs)
    positions = torch.cat([torch.arange(40), torch.tensor([4095, 4096, 65535, 262143])])
    cos, sin = rotary(torch.zeros(1), positions[None])
    ours = rope_tables(config, positions)
    assert torch.allclose(inverse_frequencies(config), rotary.inv_freq, rtol=1e-7, atol=0)
    half = config.qk_rope_head_dim // 2
    assert torch.allclose(ours[0][:, 0], cos[0, :, :half], atol=1e-6) and torch.allclose(
        ours[1][:, 0], sin[0, :, :half], atol=1e-6
    )
    with torch.device("meta"):
        assert math.isclose(config.softmax_scale, DeepseekV3Attention(theirs, 0).scaling)


def test_identity_holds_numbers_that_states_depend_on_and_no_others() -> None:
    identity = numeric_identity(parse(PUBLISHED))
    assert json.loads(json.dumps(identity)) == identity
    ignore = {**PUBLISHED["quantization_config"], "ignore": [*IGNORE, "model.visual"]}
    same = {"eos_token_id": 7, "vocab_size": 5, "max_position_embeddings": 9, "_name": "x", "quantization_config": ignore}
    assert numeric_identity(parse(edited(**same))) == identity
    changed = {
        "rms_norm_eps": 1e-6, "rope_theta": 1e4, "routed_scaling_factor": 2.5, "norm_topk_prob": False,
        "num_experts_per_tok": 4,
        "first_k_dense_replace": 3, "q_lora_rank": None, "rope_scaling": {**PUBLISHED["rope_scaling"], "mscale_all_dim": 0.5},
    }  # fmt: skip
    for name, value in changed.items():
        assert numeric_identity(parse(edited(**{name: value}))) != identity, name
    assert numeric_identity(parse(quantized(group_size=64))) != identity


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (edited(scoring_func="softmax"), "'scoring_func' = 'softmax'; supported: 'sigmoid'"),
        (edited(topk_method="greedy"), "'topk_method' = 'greedy'; supported: 'noaux_tc'"),
        (edited(moe_layer_freq=2), "'moe_layer_freq' = 2; supported: 1"),
        (edited(rope_interleave=False), "'rope_interleave' = False"),
        (edited(hidden_act="gelu"), "'hidden_act' = 'gelu'"),
        (edited(n_group=7), "do not fit its n_group"),
        (edited(n_group=4, topk_group=5), "do not fit its n_group"),
        (edited(num_key_value_heads=8), "fewer key-value heads"),
        (edited(kv_lora_rank=None), "has no 'kv_lora_rank'"),
        (edited(num_experts_per_tok=500), "more experts a token than there are"),
        (edited(qk_rope_head_dim=63), "impossible head"),
        (edited(rope_scaling={"type": "linear", "factor": 2.0}), "rope_type 'linear'; supported: default, yarn"),
        (edited(quantization_config={"quant_method": "fp8"}), "quant_method = 'fp8'; supported: 'compressed-tensors'"),
        (edited(quantization_config={**PUBLISHED["quantization_config"], "format": "nvfp4-pack-quantized"}), "format = "),
        (edited(quantization_config={**PUBLISHED["quantization_config"], "config_groups": {}}), "one config group"),
        (edited(quantization_config={**PUBLISHED["quantization_config"], "transform_config": {"u": 1}}), "weights alone"),
        (quantized(num_bits=8), "num_bits = 8; supported: 4"),
        (quantized(symmetric=False), "symmetric = False; supported: True"),
        (quantized(strategy="channel"), "strategy = 'channel'; supported: 'group'"),
        (quantized(actorder="group"), "activation order"),
        (quantized(group_size=96), "groups of 96, which do not divide hidden_size = 7168"),
        (quantized(group_size=20), "groups of 20; supported: multiples of 8"),
        ({"text_config": [1]}, "is no JSON object"),
        ({"model_type": "llama", **{k: v for k, v in PUBLISHED.items() if k != "model_type"}}, "not read for a Llama"),
    ],
)
def test_a_wrong_configuration_is_told_in_one_sentence(values: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told) as error:
        parse_config(values, "config.json")
    assert "\n" not in str(error.value) and str(error.value).startswith("config.json")
