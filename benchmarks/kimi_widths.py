"""Kimi-K2.5's sizes: its floating-point operations a token, real sample lengths, and random layers of its widths on disk."""

import json
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kimi_adapters.config import parse_config
from kimi_adapters.deepseek_config import DeepseekConfig
from kimi_adapters.deepseek_layout import layer_tensors
from kimi_adapters.lanes import ShardTokens
from kimi_adapters.tensor_file import TensorFile, TensorWriter
from kimi_adapters.tiny_config import Options, config_values
from kimi_adapters.weights import INDEX, Checkpoint

SIZES = {
    "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 64, "num_key_value_heads": 64,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 384, "num_experts_per_tok": 8,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "vocab_size": 163840, "max_position_embeddings": 262144, "tie_word_embeddings": True,
}  # fmt: skip
ROPE = {"type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0, "beta_slow": 1.0,
        "mscale": 1.0, "mscale_all_dim": 1.0}  # fmt: skip
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STORED = {torch.bfloat16: "BF16", torch.float32: "F32", torch.int32: "I32"}
# The spread of the router's corrections: sigmoids of the random routers here spread by 0.2.
SKEWED = 0.3
CORRECTION, EVEN = "e_score_correction_bias", "even_correction_bias"


def values(layers: int = 61, narrower: int = 1, experts: int = SIZES["n_routed_experts"]) -> dict[str, Any]:
    """config.json of the published layout; the head is tied, because extraction never reads it.

    `narrower` divides the widths and the heads, not the number of experts or a head's size.
    """
    given = config_values(Options())
    divided = ("hidden_size", "intermediate_size", "moe_intermediate_size", "num_attention_heads", "num_key_value_heads")
    sizes = SIZES | {name: SIZES[name] // narrower for name in divided}
    sizes |= {"num_hidden_layers": layers, "n_routed_experts": experts}
    given["text_config"] |= {**sizes, "rope_scaling": ROPE}
    given["tie_word_embeddings"] = True
    return given


def config(given: dict[str, Any] | None = None) -> DeepseekConfig:
    """The configuration of those widths, or of other values."""
    parsed = parse_config(given or values(), "Kimi-K2.5's widths")
    assert isinstance(parsed, DeepseekConfig)
    return parsed


def products(c: DeepseekConfig, dense: bool = False) -> int:
    """Floating-point operations a token in a layer, attention's scores apart: 1,000 million."""
    assert c.q_lora_rank
    heads, hidden = c.num_heads, c.hidden_size
    latent = hidden * (c.q_lora_rank + c.kv_lora_rank + c.qk_rope_head_dim)
    latent += heads * (
        c.q_lora_rank * c.qk_head_dim + c.kv_lora_rank * (c.qk_nope_head_dim + c.v_head_dim) + c.v_head_dim * hidden
    )
    experts = hidden * c.num_experts + (c.experts_per_token + c.num_shared_experts) * 3 * hidden * c.expert_size
    return 2 * (latent + (3 * hidden * c.intermediate_size if dense else experts))


def scores(c: DeepseekConfig, lengths: list[int]) -> int:
    """Floating-point operations of causal attention over samples, the masked half not counted."""
    return sum(length * length for length in lengths) * c.num_heads * (c.qk_head_dim + c.v_head_dim)


def sample_lengths(tokens: int, seed: int, long: tuple[int, ...] = ()) -> list[int]:
    """Log-normal lengths (median 1,000, mean 1,400, at most 8,192) and some `long` ones, `tokens` in all."""
    random = torch.Generator().manual_seed(seed)
    lengths = list(long)
    while sum(lengths) < tokens:
        draw = math.exp(math.log(1000) + 0.8 * float(torch.randn((), generator=random)))
        lengths.append(min(max(16, int(draw)), 8192, tokens - sum(lengths)))
    order = torch.randperm(len(lengths), generator=random).tolist()
    return [lengths[i] for i in order]


def shard(lengths: list[int], seed: int) -> ShardTokens:
    """Random tokens in samples of those lengths."""
    random = torch.Generator().manual_seed(seed)
    return ShardTokens(
        torch.randint(0, SIZES["vocab_size"], (sum(lengths),), generator=random), torch.tensor([0, *lengths]).cumsum(0)
    )


def random_tensor(c: DeepseekConfig, name: str, shape: tuple[int, ...], random: torch.Generator, skew: float) -> Tensor:
    """A tensor of a layer by its name, on the GPU, of values that keep a stream's size."""
    device = random.device
    if name.endswith("weight_packed"):
        return torch.randint(-(2**31), 2**31, shape, generator=random, device=device, dtype=torch.int32)
    if name.endswith("weight_scale"):
        spread = 4.6 * math.sqrt(shape[-1] * (c.expert_group_size or 1))  # of the integers -8…7
        return ((0.5 + torch.rand(shape, generator=random, device=device)) / spread).bfloat16()
    drawn = torch.randn(shape, generator=random, device=device)
    if name.endswith("e_score_correction_bias"):
        return skew * drawn
    return (1 + 0.1 * drawn if len(shape) == 1 else drawn / math.sqrt(shape[-1])).bfloat16()


def write_checkpoint(folder: Path, mixtures: int, skew: float = 0.0, given: dict[str, Any] | None = None) -> float:
    """config.json, embeddings, the dense layer and `mixtures` layers of experts, a file each; gives their bytes.

    With a `skew` of the router's corrections it is for RoundCheckpoint: there is a second, even set of them.
    """
    given = given or values()
    c = config(given)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(given))
    with ThreadPoolExecutor(min(mixtures + 1, 4)) as threads:
        files = list(threads.map(lambda index: _write_layer(folder, c, index, skew), range(mixtures + 1)))
    random = torch.Generator(DEVICE).manual_seed(99)
    tables = {"model.embed_tokens.weight": (c.vocab_size, c.hidden_size), "model.norm.weight": (c.hidden_size,)}
    files.append(
        _write(folder / "tables.safetensors", ((n, random_tensor(c, n, s, random, 0)) for n, s in tables.items()), tables)
    )
    weight_map = {name: file for file, names in files for name in names}
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def _write_layer(folder: Path, c: DeepseekConfig, index: int, skew: float) -> tuple[str, list[str]]:
    random = torch.Generator(DEVICE).manual_seed(index)
    expected = layer_tensors(c, index)
    prefix = f"model.layers.{index}."

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for name, one in expected.items():
            if name.endswith(CORRECTION):
                yield prefix + name, random_tensor(c, name, one.shape, random, skew)
                if skew:
                    yield prefix + name.replace(CORRECTION, EVEN), random_tensor(c, name, one.shape, random, 0.0)
            elif name.endswith("weight_shape"):
                packed = expected[name.replace("shape", "packed")].shape
                yield prefix + name, torch.tensor([packed[0], packed[1] * 8], dtype=torch.int32)
            else:
                yield prefix + name, random_tensor(c, name, one.shape, random, skew)

    shapes = {}
    for name, one in expected.items():
        shapes[prefix + name] = one.shape
        if skew and name.endswith(CORRECTION):
            shapes[prefix + name.replace(CORRECTION, EVEN)] = one.shape
    return _write(folder / f"layer-{index}.safetensors", tensors(), shapes)


def _write(path: Path, tensors: Iterator[tuple[str, Tensor]], shapes: dict[str, Any]) -> tuple[str, list[str]]:
    def stored(name: str) -> str:
        last = name.rpartition(".")[2]
        return "I32" if last in ("weight_packed", "weight_shape") else "F32" if last in (CORRECTION, EVEN) else "BF16"

    full = {f"language_model.{name}": shape for name, shape in shapes.items()}
    with open(path, "wb") as file:
        writer = TensorWriter(file, [(name, stored(name), shape) for name, shape in full.items()])
        for name, tensor in tensors:
            writer.write(f"language_model.{name}", tensor.cpu().contiguous().view(torch.uint8).numpy())
        writer.close()
    return path.name, list(full)


class RoundCheckpoint(Checkpoint):
    """A checkpoint of few layers read round and round: as many as its configuration says come out of those on disk.

    `skewed`: with the corrections of the router that send most tokens to few experts; else with none.
    """

    skewed = False

    def _check_layers(self) -> None:
        self._mixtures = len(self._layer_names) - 1

    def location(self, name: str) -> tuple[TensorFile, str]:
        """Layer k > 0 is layer 1 + (k - 1) mod those on disk."""
        head, dot, rest = name.partition(".")
        if head == "layers" and dot:
            index, _, part = rest.partition(".")
            name = f"layers.{1 + (int(index) - 1) % self._mixtures if int(index) else 0}.{part}"
        file, stored = super().location(name)
        if stored.endswith(CORRECTION) and not self.skewed:
            return file, stored.replace(CORRECTION, EVEN)
        return file, stored
