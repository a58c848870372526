"""What `benchmarks.draft_quality` trains and judges on: prompts of several kinds, the verifier's answers, their states."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from kimi_adapters.chat import FORMATS, prompt_ids, stop_ids
from kimi_adapters.draft_vocabulary import DraftVocabulary
from kimi_adapters.generation import generate
from kimi_adapters.packing import ShardFiles
from kimi_adapters.tokenizer import Tokenizer
from kimi_adapters.verifier import Verifier
from kimi_adapters.weights import Checkpoint
from tests.kimi_adapters.draft_fixtures import Sample, write_shard

PROMPTS = Path(__file__).parents[1] / "deployments" / "prompts"
FORMAT = FORMATS["smollm2"]
SHARD_SAMPLES, BATCH_TOKENS = 512, 16_384
_CODE = "Write a Python function that {}. Give the code and one sentence that explains it."
_CALL = "You may call get_weather(city), convert(amount, unit, into) or search(query). Answer with one call as JSON.\n{}"
_TASKS = [
    "reverses the words of a sentence", "counts the vowels in a string", "merges two sorted lists", "sums a number's digits",
    "finds the second largest number", "checks whether a year is a leap year", "removes duplicates from a list", "sorts words",
    "finds the longest common prefix", "converts seconds to hours and minutes", "transposes a matrix", "checks a palindrome",
]  # fmt: skip
_REQUESTS = [
    "Is it raining in Lisbon?", "How many miles are 30 kilometres?", "Who invented the zip fastener?", "What is 5 kg in stone?",
    "Do I need a coat in Oslo now?", "When was the first bicycle sold?", "How many cups are 2 litres?", "Is it warm in Cairo?",
    "Find a recipe for lentil soup.", "Turn 80 degrees Fahrenheit into Celsius.", "How windy is Chicago?", "Who wrote Emma?",
]  # fmt: skip
_HELD_OUT = 4  # of the tasks and of the requests; a held-out one is never trained on


@dataclass(frozen=True)
class Prepared:
    """Shards of answers with their states (bfloat16), the draft vocabulary, the held-out prompts as ids by kind."""

    shards: list[ShardFiles]
    vocabulary: DraftVocabulary
    held_out: dict[str, list[list[int]]]
    tokens: int


def training_prompts() -> list[str]:
    """The project's own training prompts and two kinds of task beside them."""
    own = _own(PROMPTS / "train.jsonl")
    return [*own, *(_CODE.format(t) for t in _TASKS[:-_HELD_OUT]), *(_CALL.format(r) for r in _REQUESTS[:-_HELD_OUT])]


def held_out_prompts(more: Sequence[str]) -> dict[str, list[str]]:
    """Held-out prompts by kind. `more` adds kinds, "NAME=FILE" each, FILE of JSON lines with `prompt` or `messages`."""
    kinds = {
        "own": _own(PROMPTS / "held_out.jsonl"),
        "code": [_CODE.format(task) for task in _TASKS[-_HELD_OUT:]],
        "calls": [_CALL.format(request) for request in _REQUESTS[-_HELD_OUT:]],
    }
    return kinds | {name: _own(Path(file)) for name, _, file in (one.partition("=") for one in more)}


def _own(path: Path) -> list[str]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    return [row["prompt"] if "prompt" in row else row["messages"][-1]["content"] for row in rows]


def prepare(
    work: Path,
    directory: Path,
    tokens: int,
    layer_ids: Sequence[int],
    device: str,
    answer_tokens: int,
    size: int,
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
        answers = generate(verifier, asked, answer_tokens, stops, heat, seed, batch_size=512)
        for number, (prompt, answer) in enumerate(zip(asked, answers, strict=True)):
            side = "held_out" if number % 20 == 19 else "train"  # by prompt: its answers stay on one side
            samples.append(([*prompt, *answer], [0] * len(prompt) + [1] * len(answer), side))
    shards = [
        _shard(work / f"shard-{start:06d}", samples[start : start + SHARD_SAMPLES], verifier, layer_ids)
        for start in range(0, len(samples), SHARD_SAMPLES)
    ]
    held_out = {kind: encoded(texts) for kind, texts in held_out_prompts(more).items()}
    return Prepared(
        shards, _vocabulary(samples, tokenizer, size, verifier.config.vocab_size), held_out, sum(map(_length, samples))
    )


def _length(sample: Sample) -> int:
    return len(sample[0])


def _vocabulary(samples: Sequence[Sample], tokenizer: Tokenizer, size: int, target: int) -> DraftVocabulary:
    from tasks.vocabulary import choose

    counts = torch.zeros(target, dtype=torch.int64)
    for ids, mask, side in samples:
        if side == "train":
            counts += torch.bincount(torch.tensor(ids)[torch.tensor(mask, dtype=torch.bool)], minlength=target)
    return DraftVocabulary.of_tokens(choose(counts.numpy(), tokenizer.special_ids(), size).tolist(), target)


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
