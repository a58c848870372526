"""Tiny Llama checkpoints of random weights, in the shapes that the small verifier does not have."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from kimi_adapters.torch_file import write_tensors

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
# Biases, an untied head, heads that do not fill the hidden size, stretched rotary positions.
SIZES: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 97,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "attention_bias": True,
    "mlp_bias": True,
    "tie_word_embeddings": False,
}


def write_tiny_llama(folder: Path, prefix: str = "language_model.", seed: int = 5) -> LlamaForCausalLM:
    """A checkpoint of two files with an index, its text model under `prefix`; gives transformers' model of it."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters={**LLAMA3_ROPE, "rope_theta": 500.0})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    tensors = {prefix + name: value for name, value in model.state_dict().items()}
    tensors["vision_tower.encoder.layers.0.mlp.weight"] = torch.zeros(3)
    names = list(tensors)
    files = {"model-1.safetensors": names[:20], "model-2.safetensors": names[20:]}
    for file_name, kept in files.items():
        with open(folder / file_name, "wb") as file:
            write_tensors(file, {name: tensors[name] for name in kept})
    weight_map = {name: file_name for file_name, kept in files.items() for name in kept}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    # The spelling of transformers 4, nested as multimodal checkpoints have it.
    text = {"model_type": "llama", **SIZES, "rope_theta": 500.0, "rope_scaling": LLAMA3_ROPE}
    (folder / "config.json").write_text(json.dumps({"model_type": "some_vision_model", "text_config": text}))
    return model
