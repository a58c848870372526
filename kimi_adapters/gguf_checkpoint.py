"""A Llama GGUF turned into a Hugging Face directory: float32 safetensors, tokenizer, chat template."""

import json
import os
import re
from typing import Any

import numpy as np

from errors import UserError
from kimi_adapters.gguf_file import GgufFile
from kimi_adapters.tensor_file import OpenOutput, TensorWriter, Writable

_ARCHITECTURE = "llama"
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_CONTROL, _USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type

# What `tokenizer.ggml.pre` names. SmolLM splits off each digit before the byte-level words are found; transformers'
# own GGUF import leaves that out and so tokenises white space before a digit otherwise than the model was trained.
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_PRE_TOKENIZERS = {
    "smollm": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, _BYTE_LEVEL]},
}


def convert(gguf_path: str | os.PathLike[str], open_output: OpenOutput) -> None:
    """Writes config.json, model.safetensors (float32), tokenizer.json, tokenizer_config.json, generation_config.json.

    `open_output(name)` gives a file for each, closed here. The same GGUF gives the same bytes. A head tied to the
    embeddings is not written. UserError: no GGUF, another architecture or tokenizer than a byte-level Llama's.
    """
    source = GgufFile(gguf_path)
    if _need(source, "general.architecture") != _ARCHITECTURE:
        raise UserError(f"{source.path} has another architecture than {_ARCHITECTURE}; give a Llama GGUF.")
    documents = {
        "config.json": _config(source),
        "generation_config.json": _token_ids(source),
        "tokenizer.json": _tokenizer(source),
        "tokenizer_config.json": _tokenizer_config(source),
    }
    for name, document in documents.items():
        with open_output(name) as file:
            file.write((json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode())
    with open_output("model.safetensors") as file:
        _write_weights(source, file)


def _write_weights(source: GgufFile, file: Writable) -> None:
    names = {name: _hugging_face_name(source, name) for name in source.tensors}
    entries = [(names[name], "F32", tensor.shape) for name, tensor in source.tensors.items()]
    writer = TensorWriter(file, entries, metadata={"format": "pt"})
    heads = {
        "self_attn.q_proj": _need(source, "llama.attention.head_count"),
        "self_attn.k_proj": _need(source, "llama.attention.head_count_kv"),
    }
    for gguf_name, name in names.items():
        array = source.array(gguf_name)
        for part, num_heads in heads.items():
            if f".{part}." in name:
                array = _split_halves(array, num_heads)
        writer.write(name, array)
    writer.close()


def _split_halves(array: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of a q or k projection from GGUF's rotary pairs (0, 1), (2, 3), … to Hugging Face's (0, d/2), (1, d/2 + 1)…

    The inverse of `permute` in llama.cpp's convert_hf_to_gguf.py.
    """
    pairs = array.reshape(num_heads, array.shape[0] // num_heads // 2, 2, *array.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(array.shape)


def _hugging_face_name(source: GgufFile, name: str) -> str:
    match = re.fullmatch(r"(?:blk\.(?P<layer>\d+)\.)?(?P<part>[a-z_]+)\.weight", name)
    if match and match["layer"] is None and match["part"] in _TOP_NAMES:
        return f"{_TOP_NAMES[match['part']]}.weight"
    if match and match["layer"] is not None and match["part"] in _LAYER_NAMES:
        return f"model.layers.{match['layer']}.{_LAYER_NAMES[match['part']]}.weight"
    raise UserError(f"{source.path} has the tensor {name!r}, which a plain Llama has not; give another GGUF.")


def _config(source: GgufFile) -> dict[str, Any]:
    def value(name: str) -> Any:
        return _need(source, f"llama.{name}")

    hidden_size, num_heads = value("embedding_length"), value("attention.head_count")
    theta = value("rope.freq_base")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden_size,
        "intermediate_size": value("feed_forward_length"),
        "num_hidden_layers": value("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": value("attention.head_count_kv"),
        "head_dim": source.metadata.get("llama.rope.dimension_count", hidden_size // num_heads),
        "hidden_act": "silu",
        "rms_norm_eps": value("attention.layer_norm_rms_epsilon"),
        "rope_theta": theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "max_position_embeddings": value("context_length"),
        "vocab_size": len(_need(source, "tokenizer.ggml.tokens")),
        "tie_word_embeddings": "output.weight" not in source.tensors,
        "attention_bias": False,
        "mlp_bias": False,
        "dtype": "float32",
        **_token_ids(source),
    }


def _token_ids(source: GgufFile) -> dict[str, int]:
    names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    found = {field: source.metadata.get(f"tokenizer.ggml.{name}_token_id") for field, name in names.items()}
    return {field: token_id for field, token_id in found.items() if token_id is not None}


def _tokenizer(source: GgufFile) -> dict[str, Any]:
    """tokenizer.json of a byte-level BPE, as the tokenizers library writes it."""
    model, pre = _need(source, "tokenizer.ggml.model"), _need(source, "tokenizer.ggml.pre")
    if model != "gpt2" or pre not in _PRE_TOKENIZERS:
        raise UserError(
            f"{source.path} has the tokenizer {model!r} with pre-tokenizer {pre!r}; supported: 'gpt2' with "
            f"{', '.join(_PRE_TOKENIZERS)}."
        )
    tokens, kinds = _need(source, "tokenizer.ggml.tokens"), _need(source, "tokenizer.ggml.token_type")
    added = [
        {"id": token_id, "content": tokens[token_id], "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": kind == _CONTROL}
        for token_id, kind in enumerate(kinds) if kind in (_CONTROL, _USER_DEFINED)
    ]  # fmt: skip
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": _PRE_TOKENIZERS[pre],
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: token_id for token_id, token in enumerate(tokens)},
            "merges": [merge.split(" ", 1) for merge in _need(source, "tokenizer.ggml.merges")],
        },
    }


def _tokenizer_config(source: GgufFile) -> dict[str, Any]:
    tokens = _need(source, "tokenizer.ggml.tokens")
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {field: source.metadata.get(f"tokenizer.ggml.{name}_token_id") for field, name in names.items()}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": _need(source, "llama.context_length"),
        "clean_up_tokenization_spaces": False,
        **{field: tokens[token_id] for field, token_id in ids.items() if token_id is not None},
        "chat_template": _need(source, "tokenizer.chat_template"),
    }


def _need(source: GgufFile, key: str) -> Any:
    if key not in source.metadata:
        raise UserError(f"{source.path} lacks the metadata {key!r}; give another GGUF.")
    return source.metadata[key]
