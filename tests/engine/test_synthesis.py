"""Answers from a real vLLM come with its own tokens, and they are our own verifier's."""

from pathlib import Path

from kimi_adapters.chat import chat_format, prompt_ids, stop_ids
from kimi_adapters.tokenizer import Tokenizer
from kimi_adapters.verifier import Verifier
from kimi_adapters.weights import Checkpoint
from tests.engine.vllm import Served
from tests.kimi_adapters.alone import greedy
from tests.tasks.endpoint_chunk import TOKENS, Chunk


def test_synthesis_takes_the_engines_own_tokens(served: Served, tmp_path: Path) -> None:
    """In float32, greedily, they are our own verifier's; and so are the prompts as its chat template writes them."""
    tokenizer, form = Tokenizer(served.verifier), chat_format("smollm2")
    chunk, model = Chunk(tmp_path / "chunk", served.verifier), Verifier(Checkpoint(served.verifier))
    lines = chunk.answered_at(f"{served.url}/v1", model=served.verifier.name, timeout=300.0)
    for line in lines:
        prompt = prompt_ids(line["messages"][:-1], tokenizer, form)
        answer = greedy(model, prompt, TOKENS, stop_ids(tokenizer, form))
        assert (line["prompt_ids"], line["answer_ids"]) == (prompt, answer)
        assert line["messages"][-1]["content"].strip() == tokenizer.decode(answer).strip()
