"""A draft of ours as an engine loads it: speculators' nested directory for vLLM, a flat one for SGLang.

Each configuration is a closed list of fields: what training or a parent draft brought along does not reach an engine.
"""

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from kimi_adapters.layer_ids import to_sglang, to_vllm

Value = TypeVar("Value")
_LAYER = (
    "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "hidden_act", "max_position_embeddings", "rms_norm_eps", "attention_bias",
    "attention_dropout", "mlp_bias", "use_sliding_window", "initializer_range", "tie_word_embeddings", "bos_token_id",
    "eos_token_id", "pad_token_id",
)  # fmt: skip
_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
_ARCHITECTURES = {"llama": "LlamaForCausalLM", "deepseek_v3": "DeepseekV3ForCausalLM"}


def vllm_config(config: Mapping[str, Any], dtype: str, verifier_name: str, verifier_family: str) -> dict[str, Any]:
    """config.json of a speculators directory. `config` is our own, as `draft.draft_config_values` gives it.

    vLLM's Llama draft takes three auxiliary states unless the layer's configuration says how many.
    """
    layer = config["transformer_layer_config"]
    ids = to_vllm(config["eagle_aux_hidden_state_layer_ids"])
    proposals = {
        name: config["speculators_config"][name] for name in ("algorithm", "proposal_methods", "default_proposal_method")
    }
    return {
        "architectures": config["architectures"],
        "speculators_model_type": config["speculators_model_type"],
        "speculators_version": config["speculators_version"],
        "speculators_config": {
            **proposals,
            "verifier": {"name_or_path": verifier_name, "architectures": [_ARCHITECTURES[verifier_family]]},
        },
        "draft_vocab_size": config["draft_vocab_size"],
        "eagle_aux_hidden_state_layer_ids": ids,
        "embed_requires_grad": False,
        **{name: config[name] for name in _FLAGS},
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "dtype": dtype,
        "transformer_layer_config": {
            **{name: layer[name] for name in _LAYER if name in layer},
            "architectures": layer["architectures"],
            "rope_parameters": layer["rope_parameters"],
            "num_aux_hidden_states": len(ids),
        },
    }


def sglang_config(config: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """config.json of a flat directory: ids k - 1 under `eagle_config`, rotary settings as transformers 4 and 5 read them.

    The ids stand at the top, too, as vLLM names them: it reads those first, and `eagle_config` without the shift. There is
    no `target_hidden_size`: SGLang multiplies it wherever it is there, null or not.
    """
    layer = config["transformer_layer_config"]
    ids = config["eagle_aux_hidden_state_layer_ids"]
    rope = layer["rope_parameters"]
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        **{name: layer[name] for name in _LAYER if name in layer},
        "rope_theta": rope["rope_theta"],
        "rope_scaling": sglang_scaling(rope),
        "draft_vocab_size": config["draft_vocab_size"],
        "eagle_aux_hidden_state_layer_ids": to_vllm(ids),
        "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": to_sglang(ids)},
        **{name: True for name in _FLAGS if config[name]},
        "torch_dtype": dtype,
    }


def yarn_mscale(factor: float, scale: float = 1.0) -> float:
    """What YaRN multiplies cos and sin by, unless it is told: 0.1 s ln(factor) + 1 (https://arxiv.org/abs/2309.00071)."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def sglang_scaling(rope: Mapping[str, Any]) -> dict[str, Any] | None:
    """`rope_scaling` as SGLang reads it: None where there is none. It knows no `attention_factor`: one of 1 is told by equal
    mscales, YaRN's own by silence; any other stays as it is, and `engine_rules` refuses it."""
    scaling = {name: value for name, value in rope.items() if name != "rope_theta"}
    factor = scaling.get("attention_factor")
    if factor == 1.0:
        del scaling["attention_factor"]
        scaling |= {"mscale": 1.0, "mscale_all_dim": 1.0}
    elif factor is not None and factor == yarn_mscale(rope["factor"]):
        del scaling["attention_factor"]
    return scaling if rope.get("rope_type", "default") != "default" else None


def sglang_names(tensors: Mapping[str, Value]) -> dict[str, Value]:
    """The tensors under SGLang's names: layer 0 is `midlayer`, and the input_layernorm of later layers is `hidden_norm`."""
    named = {}
    for name, tensor in tensors.items():
        theirs = name.replace("layers.0.", "midlayer.")
        if theirs.startswith("layers."):
            theirs = theirs.replace("input_layernorm", "hidden_norm")
        named[theirs] = tensor
    return named
