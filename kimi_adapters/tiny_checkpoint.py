"""Tiny checkpoints in the layouts that Kimi-K2.5 and DeepSeek-V3 are published in.

`python -m kimi_adapters.tiny_checkpoint FOLDER` makes one: random weights from a seed, a few megabytes in several files
with an index. Experts of the Kimi layout are quantized and packed by compressed-tensors itself, which is needed for the
making alone.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from errors import UserError
from kimi_adapters.config import parse_config
from kimi_adapters.deepseek_config import DeepseekConfig
from kimi_adapters.deepseek_layout import layer_tensors
from kimi_adapters.tiny_tokenizer import RANKS, special_id, tokenizer_files
from kimi_adapters.torch_file import write_tensors
from kimi_adapters.weights import INDEX

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


def make(folder: Path, options: Options = Options()) -> Path:  # noqa: B008 - frozen
    """Writes the checkpoint into `folder`, made where missing; the same options give the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    values = config_values(options)
    config = parse_config(values, str(folder / "config.json"))
    assert isinstance(config, DeepseekConfig)
    documents = {
        "config.json": values,
        "generation_config.json": {"eos_token_id": special_id("<|im_end|>"), "max_length": 4096},
    }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, indent=2) + "\n")
    for name, content in tokenizer_files(options.fast_tokenizer).items():
        (folder / name).write_bytes(content)
    _write_weights(folder, dict(_tensors(config, options)), options.files)
    return folder


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


def _tensors(config: DeepseekConfig, options: Options) -> Iterator[tuple[str, Tensor]]:
    """Every tensor by its name in the files, in the order of the layers."""
    random = torch.Generator().manual_seed(options.seed)
    prefix = "language_model." if options.layout == "kimi_k25" else ""
    pack = _packer(options.shape_dtype) if config.quantization else None
    table = (config.vocab_size, config.hidden_size)
    yield f"{prefix}model.embed_tokens.weight", torch.randn(table, generator=random).bfloat16()
    for index in range(config.num_layers + config.mtp_layers):
        for name, shape in _plain_shapes(config, index).items():
            tensor = _random(name, shape, random)
            full = f"{prefix}model.layers.{index}.{name}"
            if pack and ".experts." in name:
                yield from ((f"{full.removesuffix('weight')}{part}", value) for part, value in pack(tensor).items())
            else:
                yield full, tensor
    yield f"{prefix}model.norm.weight", _random("norm.weight", (config.hidden_size,), random)
    yield f"{prefix}lm_head.weight", _random("lm_head.weight", table, random)
    if options.layout == "kimi_k25":
        yield from _vision_tensors(random)
    else:
        for index in range(config.num_layers, config.num_layers + config.mtp_layers):
            shape = (config.hidden_size, 2 * config.hidden_size)
            yield f"model.layers.{index}.eh_proj.weight", _random("eh_proj.weight", shape, random)
            yield f"model.layers.{index}.embed_tokens.weight", _random("embed_tokens.weight", table, random)


def _plain_shapes(config: DeepseekConfig, index: int) -> dict[str, tuple[int, ...]]:
    """The shapes of a layer's tensors before packing."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, expected in layer_tensors(config, index).items():
        module, _, part = name.rpartition(".")
        if part == "weight_packed":
            shapes[f"{module}.weight"] = (expected.shape[0], expected.shape[1] * 8)
        elif part not in ("weight_scale", "weight_shape"):
            shapes[name] = expected.shape
    return shapes


def _random(name: str, shape: tuple[int, ...], random: torch.Generator) -> Tensor:
    """Gains around 1, corrections of the router with digits that bf16 has not, matrices that keep a stream's size."""
    values = torch.randn(shape, generator=random)
    if name.endswith("e_score_correction_bias"):
        return 8 + 0.01 * values
    if len(shape) == 1:
        return (1 + 0.1 * values).bfloat16()
    return (values / math.sqrt(shape[-1])).bfloat16()


def _vision_tensors(random: torch.Generator) -> Iterator[tuple[str, Tensor]]:
    shapes = {
        "vision_tower.patch_embed.proj.weight": (32, 3, 14, 14),
        "vision_tower.encoder.blocks.0.wqkv.weight": (96, 32),
        "vision_tower.encoder.blocks.0.mlp.fc0.weight": (64, 32),
        "vision_tower.encoder.final_layernorm.weight": (32,),
        "mm_projector.pre_norm.weight": (32,),
        "mm_projector.proj.0.weight": (128, 128),
    }
    for name, shape in shapes.items():
        yield name, _random(name, shape, random)


def _packer(shape_dtype: torch.dtype) -> Callable[[Tensor], dict[str, Tensor]]:
    """compressed-tensors' own quantization and packing of one weight."""
    try:
        from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
        from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
        from compressed_tensors.quantization.utils import calculate_qparams
    except ImportError as error:
        raise UserError("a Kimi checkpoint is packed by compressed-tensors: run `pip install compressed-tensors`.") from error
    args = QuantizationArgs(num_bits=4, type="int", symmetric=True, strategy="group", group_size=GROUP_SIZE)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)

    def pack(weight: Tensor) -> dict[str, Tensor]:
        groups = weight.unflatten(-1, (-1, GROUP_SIZE))
        scale, _ = calculate_qparams(groups.amin(-1), groups.amax(-1), args)
        packed = PackedQuantizationCompressor.compress({"weight": weight, "weight_scale": scale}, scheme)
        return {**packed, "weight_shape": packed["weight_shape"].to(shape_dtype)}

    return pack


def _write_weights(folder: Path, tensors: dict[str, Tensor], count: int) -> None:
    names = list(tensors)
    share = math.ceil(len(names) / count)
    weight_map = {}
    for number in range(count):
        file_name = f"model-{number + 1:05}-of-{count:06}.safetensors"
        here = names[number * share : (number + 1) * share]
        with open(folder / file_name, "wb") as file:
            write_tensors(file, {name: tensors[name] for name in here})
        weight_map |= dict.fromkeys(here, file_name)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": weight_map}, indent=2) + "\n")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m kimi_adapters.tiny_checkpoint", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layout", choices=("kimi_k25", "deepseek_v3"), default="kimi_k25")
    parser.add_argument("--wide-latents", action="store_true", help="latents of 512 + 64, as vLLM on a CPU needs them")
    parser.add_argument("--fast-tokenizer", action="store_true", help="write a tokenizer.json too")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    options = Options(given.layout, given.wide_latents, given.fast_tokenizer, seed=given.seed)
    folder = make(given.folder, options)
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder}: a tiny {given.layout} of {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
