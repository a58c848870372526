"""A small verifier whose text does not settle down, and shards of its own answers with its own states: for tests that train a
draft which is right sometimes."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from kimi_adapters.packing import ShardFiles
from kimi_adapters.tensor_file import TensorFile
from kimi_adapters.torch_file import read_tensors
from kimi_adapters.verifier import Verifier
from tests.kimi_adapters.draft_fixtures import Sample, save, write_shard

LAYERS = (0, 1, 28, 29)  # the first two and the last two


def talkative(source: Path, target: Path, vocabulary: int | None = None) -> Path:
    """``LAYERS`` of a verifier, over all of its tokens or its first ones."""
    target.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (target / name).write_bytes((source / name).read_bytes())
    values = json.loads((source / "config.json").read_text())
    sizes = {"num_hidden_layers": len(LAYERS), "vocab_size": vocabulary or values["vocab_size"]}
    (target / "config.json").write_text(json.dumps(values | sizes))
    with TensorFile(source / "model.safetensors") as file:
        tensors = read_tensors(file)
    kept = {name: tensors[name][:vocabulary] for name in ("model.embed_tokens.weight", "model.norm.weight")}
    for place, layer in enumerate(LAYERS):
        old, new = f"model.layers.{layer}.", f"model.layers.{place}."
        kept |= {name.replace(old, new): tensor for name, tensor in tensors.items() if name.startswith(old)}
    save(target / "model.safetensors", kept)
    return target


def heard(folder: Path, verifier: Verifier, made: Sequence[Sample], layer_ids: Sequence[int]) -> ShardFiles:
    """A shard of samples with the states that the verifier has over them."""
    states: dict[str, list[torch.Tensor]] = {name: [] for name in (*(f"layer.{k}" for k in layer_ids), "last")}
    for ids, _, _ in made:
        step = verifier.forward(torch.tensor([ids]), verifier.new_cache(1, len(ids)), list(layer_ids))
        for k, part in zip(layer_ids, step.aux[0].chunk(len(layer_ids), dim=-1), strict=True):
            states[f"layer.{k}"].append(part)
        states["last"].append(step.last[0])
    return write_shard(folder, made, {name: torch.cat(parts) for name, parts in states.items()})
