"""A draft for Kimi-K2.5 as training sees it: its floating-point operations a token, its shards, its verifier's rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.kimi_widths import sample_lengths
from kimi_adapters.draft import VerifierRows
from kimi_adapters.draft_vocabulary import DraftVocabulary
from kimi_adapters.llama_config import LlamaConfig
from kimi_adapters.packing import ShardFiles
from kimi_adapters.tensor_file import TensorWriter

LAYER_IDS = (2, 30, 58)
TTT_STEPS = 3


@dataclass(frozen=True)
class Widths:
    """The sizes that a step's cost depends on; of K2.5 unless given."""

    hidden: int = 7168
    vocabulary: int = 163840
    draft_vocabulary: int = 32000
    heads: int = 64
    head_dim: int = 128

    def verifier(self) -> LlamaConfig:
        """What the draft's configuration reads of the verifier."""
        return LlamaConfig(
            family="llama", hidden_size=self.hidden, num_layers=61, num_heads=self.heads, num_kv_heads=self.heads,
            head_dim=self.head_dim, intermediate_size=4 * self.hidden, vocab_size=self.vocabulary, rms_norm_eps=1e-5,
            rope_theta=5e4, rope_scaling=None, tie_word_embeddings=False, max_position_embeddings=262144,
            eos_token_ids=(1,), bos_token_id=0, pad_token_id=None, attention_bias=False, mlp_bias=False,
        )  # fmt: skip

    def words(self) -> DraftVocabulary:
        """The first tokens, as many as the draft has."""
        return DraftVocabulary.of_tokens(range(self.draft_vocabulary), self.vocabulary)

    def rows(self) -> VerifierRows:
        """Random rows; the embeddings repeat 1,024 of them, which no product notices."""
        random = torch.Generator().manual_seed(1)
        few = torch.randn(min(1024, self.vocabulary), self.hidden, generator=random) * 0.02
        embed = few.repeat(-(-self.vocabulary // len(few)), 1)[: self.vocabulary]
        return VerifierRows(embed, torch.ones(self.hidden), embed[: self.draft_vocabulary].clone())

    def products(self, intermediate: int, supervised: float = 1.0) -> int:
        """Floating-point operations a token of forward and backward, attention's scores apart.

        Trained products cost 6 a weight (2 forward, 4 backward), the frozen head 4, the fusing layer 4 (nothing is
        before it), the verifier's head 2. All but the fusing layer and step 0's keys and values is for the `supervised`
        share of the tokens alone. 18.4 thousand million at an intermediate size of 18,432, 16.0 at 12,288, if that is all.
        """
        projection, head = 2 * self.hidden * self.heads * self.head_dim, self.hidden * self.draft_vocabulary
        rows = projection + self.heads * self.head_dim * self.hidden + 3 * self.hidden * intermediate  # queries to feed-forward
        chains = TTT_STEPS * (6 * rows + 4 * head) + 2 * head + (TTT_STEPS - 1) * 6 * 2 * projection
        return int(supervised * chains) + 6 * 2 * projection + 4 * 3 * self.hidden * self.hidden


def write_shards(folder: Path, widths: Widths, tokens: int, supervised: float, samples: Sequence[int] = ()) -> list[ShardFiles]:
    """One shard in the published format with states in bfloat16: samples of `kimi_widths.sample_lengths`, or `samples`.

    `supervised` of each sample's tokens, its last, are an answer.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lengths = np.array(samples or sample_lengths(tokens, seed=0))
    total = int(lengths.sum())
    files = ShardFiles(*(folder / name for name in ("tokens", "masks", "samples.jsonl", "states")))
    random = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = random.integers(0, widths.vocabulary, total, dtype=np.int32)
    place = np.arange(total) - np.repeat(offsets[:-1], lengths)
    mask = (place >= np.repeat(lengths * (1 - supervised), lengths)).astype(np.uint8)
    _write(files.tokens, {"input_ids": ("I32", ids), "offsets": ("I64", offsets.astype(np.int64))})
    _write(files.masks, {"loss_mask": ("U8", mask)})
    files.samples.write_text('{"side": "train"}\n' * len(lengths))
    with open(files.states, "wb") as file:
        names = [*(f"layer.{k}" for k in LAYER_IDS), "last"]
        writer = TensorWriter(file, [(name, "BF16", (total, widths.hidden)) for name in names])
        for name in names:
            for block in _states(total, widths.hidden):
                writer.write(name, block.view(torch.uint8).numpy())
        writer.close()
    return [files]


def _states(total: int, hidden: int) -> Iterator[Tensor]:
    block = torch.randn(min(total, 4096), hidden, generator=torch.Generator().manual_seed(2)).bfloat16()
    for start in range(0, total, len(block)):
        yield block[: total - start]


def _write(path: Path, arrays: dict[str, tuple[str, np.ndarray]]) -> None:
    with open(path, "wb") as file:
        writer = TensorWriter(file, [(name, dtype, array.shape) for name, (dtype, array) in arrays.items()])
        for name, (_, array) in arrays.items():
            writer.write(name, array)
        writer.close()
