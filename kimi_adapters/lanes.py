"""How a shard lies in a pass: its samples, and the fixed pieces in which it is computed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from errors import UserError
from kimi_adapters.chunk_sizes import Sizes


@dataclass(frozen=True)
class ShardTokens:
    """A token shard: `input_ids` integers [T]; sample i is offsets[i]:offsets[i + 1], `offsets` integers [n + 1]."""

    input_ids: Tensor
    offsets: Tensor


@dataclass(frozen=True)
class Span:
    """Whole samples that lie side by side: up to Sizes.span tokens together, or one longer sample."""

    start: int
    end: int
    samples: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Lane:
    """What a shard needs in every layer. All cuts depend on the shard and the kind of device alone.

    `samples` are (start, end) of the samples that are not empty; `cos` and `sin` are float32 [T, 1, …], of each
    token's place in its sample.
    """

    number: int
    total: int
    samples: tuple[tuple[int, int], ...]
    sizes: Sizes
    cos: Tensor
    sin: Tensor

    def chunks(self) -> list[slice]:
        """The shard in chunks for dense products."""
        return pieces(0, self.total, self.sizes.tokens)

    def expert_chunks(self) -> list[slice]:
        """The shard in chunks for routed products."""
        return pieces(0, self.total, self.sizes.expert_tokens)

    def spans(self) -> Iterator[Span]:
        """The shard in spans for attention."""
        together: list[tuple[int, int]] = []
        for start, end in self.samples:
            if together and end - together[0][0] > self.sizes.span:
                yield Span(together[0][0], together[-1][1], tuple(together))
                together = []
            together.append((start, end))
        if together:
            yield Span(together[0][0], together[-1][1], tuple(together))


def pieces(start: int, end: int, size: int) -> list[slice]:
    """start:end cut every `size`."""
    return [slice(at, min(at + size, end)) for at in range(start, end, size)]


def sample_bounds(number: int, shard: ShardTokens, vocab_size: int) -> tuple[tuple[int, int], ...]:
    """(start, end) of the samples that are not empty. UserError: offsets or ids that do not fit shard or vocabulary."""
    ids, offsets = shard.input_ids, shard.offsets.tolist()
    total = len(ids)
    bounds = list(zip(offsets, offsets[1:], strict=False))
    if not offsets or offsets[0] != 0 or offsets[-1] != total or any(start > end for start, end in bounds):
        raise UserError(f"shard {number} of the pass has offsets that do not cover its {total} tokens; make it again.")
    if total and (int(ids.min()) < 0 or int(ids.max()) >= vocab_size):
        raise UserError(
            f"shard {number} of the pass has token ids outside the verifier's vocabulary of {vocab_size}; "
            "make the corpus with this verifier's tokenizer."
        )
    return tuple((start, end) for start, end in bounds if start < end)


def positions(samples: Sequence[tuple[int, int]]) -> Tensor:
    """Each token's place in its sample, int64 [T]."""
    places = [torch.arange(end - start) for start, end in samples]
    return torch.cat(places) if places else torch.zeros(0, dtype=torch.int64)
