"""Tiny checkpoints in the layouts that Kimi-K2.5 and DeepSeek-V3 are published in.

`python -m kimi_adapters.tiny_checkpoint FOLDER` makes one: random weights from a seed, a few megabytes in several files
with an index. Experts of the Kimi layout are quantized and packed by compressed-tensors itself, which is needed for the
making alone.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from errors import UserError
from kimi_adapters.config import parse_config
from kimi_adapters.deepseek_config import DeepseekConfig
from kimi_adapters.deepseek_layout import layer_tensors
from kimi_adapters.tiny_config import GROUP_SIZE, Options, config_values
from kimi_adapters.tiny_tokenizer import special_id, tokenizer_files
from kimi_adapters.torch_file import write_tensors
from kimi_adapters.weights import INDEX


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
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # thousands of tiny products: threads would only wait for one another
    try:
        _write_weights(folder, dict(_tensors(config, options)), options.files)
    finally:
        torch.set_num_threads(threads)
    return folder


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
    weight_map: dict[str, str] = {}
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
