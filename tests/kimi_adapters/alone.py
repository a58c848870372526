"""Decoding of one prompt by itself: what decoding side by side is held to, and what tests ask of an engine."""

from collections.abc import Collection, Sequence

import torch

from kimi_adapters.decoding import DecodeResult, decode_all
from kimi_adapters.draft_runner import DraftRunner
from kimi_adapters.token_choice import Greedy, TokenChoice
from kimi_adapters.verifier import Verifier


def greedy(verifier: Verifier, prompt_ids: Sequence[int], max_new_tokens: int, stop_ids: Collection[int]) -> list[int]:
    """The likeliest token, one verifier step each, up to `max_new_tokens` or a stop token, which is included."""
    cache = verifier.new_cache(1, len(prompt_ids) + max_new_tokens)
    output: list[int] = []
    ids = list(prompt_ids)
    while len(output) < max_new_tokens and not (output and output[-1] in stop_ids):
        step = verifier.forward(torch.tensor([ids]), cache)
        ids = [int(verifier.logits(step.last[0, -1]).argmax())]
        output += ids
    return output


def decode(
    verifier: Verifier,
    draft: DraftRunner,
    prompt_ids: Sequence[int],
    k: int,
    max_new_tokens: int,
    stop_ids: Collection[int],
    choice: TokenChoice | None = None,
) -> DecodeResult:
    """`decode_all` of one prompt."""
    return decode_all(verifier, draft, [prompt_ids], k, max_new_tokens, stop_ids, [choice or Greedy()])[0]
