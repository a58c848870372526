"""Whether a training checkpoint's bytes are those that were written: without torch, so that a plan can ask."""

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

from errors import UserError
from kimi_adapters.tensor_file import TensorFile

STATE, PROOF = "training_state", "training_proof"
Piece = tuple[str, str, tuple[int, ...], memoryview]  # name, the format's dtype, shape, bytes
# What a proof calls a dtype: torch's word.
_WORDS = {
    "F32": "torch.float32", "BF16": "torch.bfloat16", "F16": "torch.float16", "I64": "torch.int64", "I32": "torch.int32",
    "BOOL": "torch.bool", "U8": "torch.uint8",
}  # fmt: skip


def proof(state: str, pieces: Iterable[Piece], told: Callable[[int], None] = lambda count: None) -> str:
    """SHA-256 of a state's text and of every tensor's name, dtype, shape and bytes, in the order of names.

    `told` hears of bytes."""
    digest = hashlib.sha256(state.encode())
    for name, dtype, shape, data in pieces:
        digest.update(f"{name} {_WORDS[dtype]} {shape}".encode())
        digest.update(data)
        told(len(data))
    return digest.hexdigest()


def proven_state(file: TensorFile, told: Callable[[int], None] = lambda count: None) -> str:
    """The text of a checkpoint's state. KeyError, ValueError: it is no checkpoint, or its bytes are others."""
    state = file.metadata[STATE]
    pieces = ((name, entry.dtype, entry.shape, file.bytes(name)) for name, entry in sorted(file.entries.items()))
    if proof(state, pieces, told) != file.metadata[PROOF]:
        raise ValueError("its bytes are not those that were written")
    return state


def is_whole(path: Path, told: Callable[[int], None] = lambda count: None) -> bool:
    """Whether a file is a training checkpoint as it was written; `told` hears of bytes that were read."""
    try:
        with TensorFile(path) as file:
            proven_state(file, told)
    except (UserError, KeyError, ValueError):
        return False
    return True
