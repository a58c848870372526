"""A tiny verifier's numbers, shards with random states, and a tiny draft, for the tests of the draft side."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from kimi_adapters.config import TextConfig
from kimi_adapters.draft_vocabulary import DraftVocabulary
from kimi_adapters.llama_config import LlamaConfig
from kimi_adapters.packing import ShardFiles
from kimi_adapters.torch_file import write_tensors

LAYER_IDS = [1, 3, 5]
VERIFIER = LlamaConfig(
    family="llama",
    hidden_size=32,
    num_layers=6,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    intermediate_size=48,
    vocab_size=97,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
    rope_scaling=None,
    tie_word_embeddings=True,
    max_position_embeddings=512,
    eos_token_ids=(2, 5),
    bos_token_id=1,
    pad_token_id=None,
    attention_bias=False,
    mlp_bias=False,
)
VOCABULARY = DraftVocabulary.of_tokens(range(3, 80, 2), VERIFIER.vocab_size)
Sample = tuple[list[int], list[int], str]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def verifier_tensors(config: TextConfig = VERIFIER) -> tuple[Tensor, Tensor, Tensor]:
    """embed, norm, lm_head (all of its rows) of a verifier with random numbers."""
    source, shape = generator(7), (config.vocab_size, config.hidden_size)
    embed, head = torch.randn(shape, generator=source), torch.randn(shape, generator=source)
    return embed, 0.5 + torch.rand(config.hidden_size, generator=source), head


def samples(count: int, seed: int = 0, prompt: int = 9, answer: int = 14) -> list[Sample]:
    """Random (ids, mask, side): a prompt and an answer, each of about that many tokens; every fifth is held out."""
    source = generator(seed)
    made = []
    for number in range(count):
        before, after = (int(torch.randint(size // 2 + 2, size + 1, (), generator=source)) for size in (prompt, answer))
        ids = torch.randint(0, VERIFIER.vocab_size, (before + after,), generator=source).tolist()
        made.append((ids, [0] * before + [1] * after, "held_out" if number % 5 == 4 else "train"))
    return made


def write_shard(
    directory: Path,
    made: Sequence[Sample],
    states: dict[str, Tensor] | None = None,
    dtype: torch.dtype = torch.float32,
    layer_ids: Sequence[int] = LAYER_IDS,
) -> ShardFiles:
    """The four files of a shard; states are random numbers of the tiny verifier's size unless given."""
    directory.mkdir(parents=True, exist_ok=True)
    tokens_path, masks_path, states_path = (directory / f"{name}.safetensors" for name in ("tokens", "masks", "states"))
    files = ShardFiles(tokens_path, masks_path, directory / "samples.jsonl", states_path)
    lengths = torch.tensor([0, *(len(ids) for ids, _, _ in made)])
    tokens = torch.tensor([token for ids, _, _ in made for token in ids], dtype=torch.int32)
    mask = torch.tensor([bit for _, bits, _ in made for bit in bits], dtype=torch.uint8)
    if states is None:
        source, names = generator(len(tokens)), [*(f"layer.{k}" for k in layer_ids), "last"]
        states = {name: torch.randn(len(tokens), VERIFIER.hidden_size, generator=source) for name in names}
    save(files.tokens, {"input_ids": tokens, "offsets": lengths.cumsum(0)})
    save(files.masks, {"loss_mask": mask})
    save(files.states, states, dtype)
    lines = [{"id": str(i), "side": side, "supervised": sum(bits)} for i, (_, bits, side) in enumerate(made)]
    files.samples.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return files


def learnable_shard(directory: Path, count: int, seed: int = 0) -> ShardFiles:
    """A shard whose tokens follow one another by a fixed rule that the last states know: a draft can learn it."""
    _, norm, head = verifier_tensors()
    targets = VOCABULARY.targets()
    made: list[Sample] = []
    for _, mask, side in samples(count, seed):
        first = int(torch.randint(0, len(targets), (), generator=generator(seed * 100 + len(made))))
        made.append(([int(targets[(first + 7 * i) % len(targets)]) for i in range(len(mask))], mask, side))
    tokens = torch.tensor([token for ids, _, _ in made for token in ids])
    source = generator(seed + 50)
    states = {f"layer.{k}": torch.randn(len(tokens), VERIFIER.hidden_size, generator=source) for k in LAYER_IDS}
    return write_shard(directory, made, states | {"last": head[tokens.roll(-1)] / norm})


def timeless(curves: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    """Curves without the columns that the clock writes, or that are of the first rank's packs alone."""
    clocked = ("tokens_per_s", "seconds", "loader_wait", "loader_reading", "loader_bytes")
    return [{name: value for name, value in entry.items() if name not in clocked} for entry in curves]


def save(path: Path, tensors: dict[str, Tensor], dtype: torch.dtype | None = None) -> None:
    with open(path, "wb") as file:
        write_tensors(file, tensors, dtype)


def outputs_in(directory: Path) -> Callable[[str], BinaryIO]:
    """An `open_output` for files of a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    return lambda name: open(directory / name, "wb")
