"""The configuration of a tiny checkpoint, spelled as the published files spell theirs."""

from dataclasses import dataclass
from typing import Any, Literal

import torch

from kimi_adapters.tiny_tokenizer import RANKS, special_id

GROUP_SIZE = 32
# Kimi-K2.5's own list: it names no vision tower, and no router, which is no Linear there.
IGNORE = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]


@dataclass(frozen=True)
class Options:
    """What to make.

    `layout`: "kimi_k25" (nested configuration, INT4 experts, vision tensors, `language_model.` prefix) or
    "deepseek_v3" (flat, bf16, expert groups, a layer that predicts further tokens). `wide_latents`: kv_lora_rank 512
    and 64 rotary dimensions, as vLLM on a CPU needs them. `quantization_at`: where it stands in config.json.
    `shape_dtype`: of weight_shape; the published files have int32, compressed-tensors itself writes int64.
    """

    layout: Literal["kimi_k25", "deepseek_v3"] = "kimi_k25"
    wide_latents: bool = False
    fast_tokenizer: bool = False
    quantization_at: Literal["text", "top"] = "text"
    shape_dtype: torch.dtype = torch.int32
    query_latent: bool = True
    layers: int = 7
    files: int = 4
    seed: int = 0


def config_values(options: Options) -> dict[str, Any]:
    """config.json's values, spelled as the published file spells them."""
    kimi = options.layout == "kimi_k25"
    text: dict[str, Any] = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "kimi_k2" if kimi else "deepseek_v3",
        "hidden_size": 128,
        "num_hidden_layers": options.layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "intermediate_size": 256,
        "moe_intermediate_size": 64,
        "n_routed_experts": 16,
        "num_experts_per_tok": 4,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "n_group": 1 if kimi else 4,
        "topk_group": 1 if kimi else 2,
        "q_lora_rank": 48 if options.query_latent else None,
        "kv_lora_rank": 512 if options.wide_latents else 32,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 64 if options.wide_latents else 16,
        "v_head_dim": 32,
        "vocab_size": RANKS + 256,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "attention_bias": False,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.827,
        "tie_word_embeddings": False,
        "num_nextn_predict_layers": 0 if kimi else 1,
        "rope_theta": 50000.0,
        "rope_scaling": {
            "type": "yarn", "factor": 64.0, "original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0,
            "mscale": 1.0, "mscale_all_dim": 1.0,
        },
        "bos_token_id": special_id("[BOS]"),
        "eos_token_id": special_id("[EOS]"),
        "pad_token_id": special_id("[PAD]"),
        "dtype": "bfloat16",
    }  # fmt: skip
    if not kimi:
        return text
    outer: dict[str, Any] = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "auto_map": {"AutoConfig": "configuration_kimi_k25.KimiK25Config"},
        "model_type": "kimi_k25",
        "text_config": text,
        "vision_config": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64},
        "media_placeholder_token_id": special_id("<|media_pad|>"),
        "tie_word_embeddings": False,
    }
    (text if options.quantization_at == "text" else outer)["quantization_config"] = _quantization()
    return outer


def _quantization() -> dict[str, Any]:
    weights = {
        "num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP_SIZE, "dynamic": False,
        "actorder": None, "block_structure": None, "observer": "minmax", "observer_kwargs": {},
    }  # fmt: skip
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": IGNORE,
        "kv_cache_scheme": None,
    }
