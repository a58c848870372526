"""Drafts as others publish them: directories in either format, of random numbers, written without our own writer's names."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kimi_adapters.draft_vocabulary import DraftVocabulary
from tests.kimi_adapters.draft_fixtures import LAYER_IDS, VERIFIER, VOCABULARY, generator, save

HIDDEN, HEADS, KEY_HEADS, HEAD, INNER = 32, 8, 4, 16, 48


def published_tensors(
    vocabulary: DraftVocabulary = VOCABULARY, layers: int = 1, hidden: int = HIDDEN, inner: int = INNER
) -> dict[str, Tensor]:
    """A draft's tensors under speculators' names, maps and all."""
    source = generator(11)
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens": (vocabulary.target_size, hidden), "fc": (hidden, 3 * hidden)}
    shapes |= {"norm": (hidden,), "lm_head": (vocabulary.size, hidden), "layers.0.hidden_norm": (hidden,)}
    for i in range(layers):
        read = 2 * hidden if i == 0 else hidden
        inside: dict[str, tuple[int, ...]] = {"self_attn.q_proj": (HEADS * HEAD, read)}
        inside |= {"self_attn.k_proj": (KEY_HEADS * HEAD, read)}
        inside |= {"self_attn.v_proj": (KEY_HEADS * HEAD, read), "self_attn.o_proj": (hidden, HEADS * HEAD)}
        inside |= {"mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner)}
        inside |= {"input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}
        shapes |= {f"layers.{i}.{name}": shape for name, shape in inside.items()}
    tensors = {f"{name}.weight": torch.randn(shape, generator=source) for name, shape in shapes.items()}
    if vocabulary.d2t is not None and vocabulary.t2d is not None:
        tensors |= {"d2t": vocabulary.d2t, "t2d": vocabulary.t2d}
    return tensors


def layer_values(**changed: Any) -> dict[str, Any]:
    """The decoder layer's part of a config.json, in the spelling of transformers 4."""
    values: dict[str, Any] = {
        "model_type": "llama", "vocab_size": 97, "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": 1,
        "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS, "head_dim": HEAD, "hidden_act": "silu",
        "max_position_embeddings": VERIFIER.max_position_embeddings, "rms_norm_eps": 1e-5, "rope_theta": 1e6,
        "rope_scaling": None, "tie_word_embeddings": False, "attention_bias": False, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    return values | changed


def flat_values(**changed: Any) -> dict[str, Any]:
    """config.json as EAGLE's and SGLang's drafts have it."""
    eagle = {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [k - 1 for k in LAYER_IDS]}
    own = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": VOCABULARY.size, "eagle_config": eagle}
    return layer_values(**own | {"torch_dtype": "bfloat16"} | changed)


def nested_values(**changed: Any) -> dict[str, Any]:
    """config.json as speculators publishes it."""
    method = {"proposal_type": "greedy", "speculative_tokens": 5, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    verifier = {"name_or_path": "someone/verifier", "architectures": ["LlamaForCausalLM"]}
    how = {"algorithm": "eagle3", "proposal_methods": [method], "default_proposal_method": "greedy", "verifier": verifier}
    own: dict[str, Any] = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.4.0",
    }
    own |= {"auto_map": {"": "config.Eagle3"}, "draft_vocab_size": VOCABULARY.size, "norm_before_residual": True}
    ids = {"eagle_aux_hidden_state_layer_ids": LAYER_IDS}
    return {**own, **ids, "speculators_config": how, "transformer_layer_config": layer_values(), **changed}


def flat_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()}


def write_draft(folder: Path, values: dict[str, Any], *files: dict[str, Tensor]) -> Path:
    """A directory of one file, or of several with their index."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(values))
    names = [f"model-{i:05d}-of-{len(files):05d}.safetensors" for i in range(1, len(files) + 1)]
    for name, tensors in zip(names if len(files) > 1 else ["model.safetensors"], files, strict=True):
        save(folder / name, tensors, torch.bfloat16)
    if len(files) > 1:
        placed = {tensor: name for name, tensors in zip(names, files, strict=True) for tensor in tensors}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    return folder
