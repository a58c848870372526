"""Tiny checkpoints of the DeepSeek-V3 family, transformers' model of each, and what a pass gives."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from torch import Tensor
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

from kimi_adapters.layer_stream import ShardTokens, stream_states
from kimi_adapters.tensor_file import TensorFile
from kimi_adapters.torch_file import read_tensors
from kimi_adapters.weights import Checkpoint, weight_files

SCHEME = QuantizationScheme(
    targets=["Linear"], weights=QuantizationArgs(num_bits=4, type="int", symmetric=True, strategy="group", group_size=32)
)


def stored_tensors(folder: Path) -> dict[str, Tensor]:
    """Every tensor of the files, read without the code under test's naming."""
    tensors: dict[str, Tensor] = {}
    for path in weight_files(folder):
        with TensorFile(path) as file:
            tensors |= read_tensors(file)
    return tensors


def unpacked_by_compressed_tensors(tensors: Mapping[str, Tensor], module: str) -> Tensor:
    """One weight as compressed-tensors unpacks it."""
    parts = {part: tensors[f"{module}.{part}"] for part in ("weight_packed", "weight_scale", "weight_shape")}
    weight: Tensor = PackedQuantizationCompressor.decompress(parts, SCHEME)["weight"]
    return weight


def transformers_model(folder: Path, dtype: torch.dtype = torch.float32) -> DeepseekV3ForCausalLM:
    """transformers' DeepseekV3ForCausalLM of text_config, on the unpacked weights."""
    values = json.loads((folder / "config.json").read_text())
    text = {k: v for k, v in values.get("text_config", values).items() if k not in ("model_type", "quantization_config")}
    config = DeepseekV3Config(**text)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = DeepseekV3ForCausalLM(config)
    tensors = {name.removeprefix("language_model."): tensor for name, tensor in stored_tensors(folder).items()}
    state = {}
    for name in model.state_dict():
        module, _, part = name.rpartition(".experts.")
        if module and part == "gate_up_proj":
            state[name] = torch.stack(
                [torch.cat([_expert(tensors, module, e, p) for p in ("gate", "up")]) for e in _experts(config)]
            )
        elif module and part == "down_proj":
            state[name] = torch.stack([_expert(tensors, module, e, "down") for e in _experts(config)])
        else:
            state[name] = tensors[name]
    model.load_state_dict(state, strict=True)
    # Buffers stay in float32 and exact, as transformers' own loading keeps them; a plain `.to` would cast them.
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    model = model.to(dtype).eval()
    for name, value in buffers.items():
        module, _, buffer = name.rpartition(".")
        setattr(model.get_submodule(module), buffer, value)
    return model


def _experts(config: DeepseekV3Config) -> range:
    return range(config.n_routed_experts)


def _expert(tensors: Mapping[str, Tensor], module: str, expert: int, part: str) -> Tensor:
    name = f"{module}.experts.{expert}.{part}_proj"
    return tensors[f"{name}.weight"] if f"{name}.weight" in tensors else unpacked_by_compressed_tensors(tensors, name)


def theirs(model: DeepseekV3ForCausalLM, ids: Tensor, layers: Sequence[int]) -> dict[str, Tensor]:
    """transformers' states of one sample; `last` is what enters the final norm."""
    caught: list[Tensor] = []
    hook = model.model.norm.register_forward_pre_hook(lambda module, inputs: caught.append(inputs[0][0]))
    with torch.no_grad():
        out = model(ids[None], output_hidden_states=True, use_cache=False)
    hook.remove()
    return {**{f"layer.{k}": out.hidden_states[k][0] for k in layers}, "last": caught[0], "logits": out.logits[0]}


def ours(shards: Sequence[ShardTokens], folder: Path, layers: Sequence[int], **options: Any) -> list[dict[str, Tensor]]:
    """What a pass gives, put together."""
    chunks: dict[tuple[int, str], list[Tensor]] = defaultdict(list)
    stream_states(shards, Checkpoint(folder), layers, lambda i, name, chunk: chunks[i, name].append(chunk.clone()), **options)
    return [{name: torch.cat(parts) for (j, name), parts in chunks.items() if j == i} for i in range(len(shards))]


def shard_of(lengths: Sequence[int], vocabulary: int, seed: int) -> ShardTokens:
    """A shard of random samples."""
    ids = torch.randint(0, vocabulary, (sum(lengths),), generator=torch.Generator().manual_seed(seed))
    return ShardTokens(ids, torch.tensor([0, *lengths]).cumsum(0))


def samples_of(shard: ShardTokens) -> list[Tensor]:
    """The ids of each sample."""
    cuts = shard.offsets.tolist()
    return [shard.input_ids[a:b] for a, b in zip(cuts, cuts[1:], strict=False) if b > a]
