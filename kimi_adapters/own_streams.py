"""Our own forward of one short text with every residual stream kept: what an engine's states are compared with."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from kimi_adapters.layer_proof import LAST, Reference
from kimi_adapters.layer_stream import ShardTokens, stream_states
from kimi_adapters.tokenizer import Tokenizer
from kimi_adapters.weights import Checkpoint

TEXT = (
    "A falcon waits high above the valley until the wind turns. Then it folds its wings and falls, faster than rain, and the "
    "starlings below scatter like seeds: 12, 40, 300 of them.\n\ndef height(t):\n    return 120 - 4.9 * t ** 2\n"
)


def proof_ids(directory: Path) -> list[int]:
    """The text of every proof in a verifier's own tokens."""
    return Tokenizer(directory).encode(TEXT)


def own_streams(
    checkpoint: Checkpoint,
    token_ids: Sequence[int],
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Reference:
    """Takes tokens through the verifier in ``dtype``; its layers are read once."""
    ids = torch.tensor(token_ids, dtype=torch.int64)
    count = checkpoint.config.num_layers
    streams = torch.zeros(count + 1, len(ids), checkpoint.config.hidden_size)
    filled = [0] * (count + 1)

    def sink(shard: int, name: str, chunk: Tensor) -> None:
        index = count if name == LAST else int(name.removeprefix("layer."))
        streams[index, filled[index] : filled[index] + len(chunk)] = chunk
        filled[index] += len(chunk)

    shard = ShardTokens(ids.to(torch.int32), torch.tensor([0, len(ids)]))
    stream_states([shard], checkpoint, range(count), sink, device, dtype)
    return Reference(ids, streams)
