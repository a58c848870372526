"""What `benchmarks.draft_quality` trains on: the verifier's answers and their states."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.quality_prompts import held_out_prompts, training_prompts
from kimi_adapters.chat import FORMATS, prompt_ids, stop_ids
from kimi_adapters.draft_vocabulary import DraftVocabulary
from kimi_adapters.generation import generate
from kimi_adapters.packing import ShardFiles
from kimi_adapters.tokenizer import Tokenizer
from kimi_adapters.verifier import Verifier
from kimi_adapters.weights import Checkpoint
from tasks.vocabulary import choose
from tests.kimi_adapters.draft_fixtures import Sample, write_shard

FORMAT = FORMATS["smollm2"]
SHARD_SAMPLES, BATCH_TOKENS, ANSWERS = 512, 16_384, 2048  # ANSWERS side by side


@dataclass(frozen=True)
class Prepared:
    """Shards of answers with their states (bfloat16), how often the answers have each token (I64 [V]), the held-out prompts
    as ids by kind."""

    shards: list[ShardFiles]
    counts: Tensor
    held_out: dict[str, list[list[int]]]
    tokens: int


def prepare(
    work: Path,
    directory: Path,
    tokens: int,
    layer_ids: Sequence[int],
    device: str,
    answer_tokens: int,
    more: Sequence[str],
) -> Prepared:
    """Answers of about `tokens` tokens in all, drawn at temperature 1 (the first round greedily), and their states."""
    verifier, tokenizer = Verifier(Checkpoint(directory), device), Tokenizer(directory)
    stops = stop_ids(tokenizer, FORMAT)

    def encoded(texts: Sequence[str]) -> list[list[int]]:
        return [prompt_ids([{"role": "user", "content": text}], tokenizer, FORMAT) for text in texts]

    prompts = encoded(training_prompts())
    samples: list[Sample] = []
    while sum(len(ids) for ids, _, _ in samples) < tokens:
        lacking = tokens - sum(len(ids) for ids, _, _ in samples)
        asked = prompts[: max(8, lacking // answer_tokens + 1)]
        heat, seed = (1.0, len(samples)) if samples else (0.0, 0)
        answers = generate(verifier, asked, answer_tokens, stops, heat, seed, batch_size=ANSWERS)
        for number, (prompt, answer) in enumerate(zip(asked, answers, strict=True)):
            side = "held_out" if number % 20 == 19 else "train"  # by prompt: its answers stay on one side
            samples.append(([*prompt, *answer], [0] * len(prompt) + [1] * len(answer), side))
    shards = [
        _shard(work / f"shard-{start:06d}", samples[start : start + SHARD_SAMPLES], verifier, layer_ids)
        for start in range(0, len(samples), SHARD_SAMPLES)
    ]
    held_out = {kind: encoded(texts) for kind, texts in held_out_prompts(more).items()}
    return Prepared(shards, _counts(samples, verifier.config.vocab_size), held_out, sum(map(_length, samples)))


def vocabulary_of(counts: Tensor, tokenizer: Tokenizer, size: int) -> DraftVocabulary:
    """The vocabulary of `size` tokens that the flow would choose."""
    return DraftVocabulary.of_tokens(choose(counts.numpy(), tokenizer.special_ids(), size).tolist(), len(counts))


def _length(sample: Sample) -> int:
    return len(sample[0])


def _counts(samples: Sequence[Sample], target: int) -> Tensor:
    counts = torch.zeros(target, dtype=torch.int64)
    for ids, mask, side in samples:
        if side == "train":
            counts += torch.bincount(torch.tensor(ids)[torch.tensor(mask, dtype=torch.bool)], minlength=target)
    return counts


def _shard(folder: Path, samples: Sequence[Sample], verifier: Verifier, layer_ids: Sequence[int]) -> ShardFiles:
    """A shard with the states of its samples, computed many at a time (padded on the right, which no earlier token sees)."""
    names = [*(f"layer.{k}" for k in layer_ids), "last"]
    found: dict[int, list[Tensor]] = {}
    waiting = sorted(range(len(samples)), key=lambda number: len(samples[number][0]))
    while waiting:
        longest = len(samples[waiting[-1]][0])
        rows, waiting = waiting[-max(1, BATCH_TOKENS // longest) :], waiting[: -max(1, BATCH_TOKENS // longest)]
        ids = torch.tensor([[*samples[row][0], *[0] * (longest - len(samples[row][0]))] for row in rows])
        step = verifier.forward(ids, verifier.new_cache(len(rows), longest), layer_ids)
        states = [*step.aux.chunk(len(layer_ids), dim=-1), step.last]
        for place, row in enumerate(rows):
            found[row] = [state[place, : len(samples[row][0])].to("cpu", torch.bfloat16) for state in states]
    joined = {name: torch.cat([found[row][i] for row in range(len(samples))]) for i, name in enumerate(names)}
    return write_shard(folder, samples, joined, torch.bfloat16, layer_ids)
