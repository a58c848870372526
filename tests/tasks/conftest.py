"""Real answers of the cut verifier, with the states that it had while it gave them; an engine that serves it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from kimi_adapters.chat import FORMATS, prompt_ids, stop_ids
from kimi_adapters.chat_masks import render
from kimi_adapters.generation import generate
from kimi_adapters.tokenizer import Tokenizer
from kimi_adapters.verifier import Verifier
from kimi_adapters.weights import Checkpoint
from tests.engine_endpoint import Engine
from tests.projects import TOPICS, conversation
from tests.prophet import Prophet
from tests.tasks.engine_judge import ROWS, TOKENS, Judge
from tests.tasks.stage_jobs import Bench, Made, Text

ANSWER_TOKENS = 24
OWN, FOREIGN = 8, 3  # greedy answers of the verifier, then answers that are not its own


@pytest.fixture(scope="session")
def texts(cut_verifier: Path) -> list[Text]:
    """Eight greedy answers of the cut verifier, then three answers that it did not give."""
    tokenizer, form = Tokenizer(cut_verifier), FORMATS["smollm2"]
    model = Verifier(Checkpoint(cut_verifier), device="cpu", dtype=torch.float32)
    talks = [conversation(topic, number) for number, topic in enumerate(TOPICS[: OWN + FOREIGN])]
    prompts = [prompt_ids([{"role": "user", "content": question}], tokenizer, form) for question, _ in talks]
    answers = generate(model, prompts[:OWN], ANSWER_TOKENS, stop_ids(tokenizer, form))
    own = [
        Text([*prompt, *answer], [0] * len(prompt) + [1] * len(answer), more={"greedy": True, "slices": {"source": "own"}})
        for prompt, answer in zip(prompts, answers, strict=False)
    ]
    turns = [[{"role": "user", "content": q}, {"role": "assistant", "content": a}] for q, a in talks[OWN:]]
    return [*own, *(Text(*render(turn, tokenizer, form), more={"slices": {"source": "foreign"}}) for turn in turns)]


@pytest.fixture(scope="session")
def bench(cut_verifier: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A store with the cut verifier beside it."""
    return Bench(tmp_path_factory.mktemp("bench"), cut_verifier)


@pytest.fixture(scope="session")
def clean(bench: Bench, texts: list[Text]) -> Made:
    """A shard of ``texts`` with its real states."""
    shard = bench.shard(texts)
    bench.extract(shard)
    return shard


@pytest.fixture(scope="session")
def engine(cut_verifier: Path) -> Engine:
    """The cut verifier as an engine has it."""
    return Engine(cut_verifier)


@pytest.fixture(scope="session")
def prophet(engine: Engine) -> Any:
    """A draft that knows most of what the engine answers."""
    return Prophet.of(engine, ROWS, TOKENS)


@pytest.fixture
def judged(tmp_path: Path, cut_verifier: Path) -> Judge:
    """Judges drafts in engines."""
    return Judge(tmp_path, cut_verifier)
