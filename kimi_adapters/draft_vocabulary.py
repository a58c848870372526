"""The draft vocabulary: which target tokens a draft can propose."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from errors import UserError
from kimi_adapters.tensor_file import TensorFile
from kimi_adapters.torch_file import read_tensors


@dataclass(frozen=True)
class DraftVocabulary:
    """`size` draft tokens out of `target_size`.

    d2t [size] int64 is an OFFSET (target = i + d2t[i]), t2d [target_size] bool; both are None when the sizes are
    equal.
    """

    size: int
    target_size: int
    d2t: Tensor | None = None
    t2d: Tensor | None = None

    def targets(self) -> Tensor:
        """The target id of every draft id, [size] int64."""
        ids = torch.arange(self.size)
        return ids if self.d2t is None else ids + self.d2t

    @classmethod
    def of_tokens(cls, token_ids: Iterable[int], target_size: int) -> Self:
        """From the target ids to keep. UserError: none, or ids outside the target vocabulary."""
        kept = torch.tensor(sorted(set(token_ids)), dtype=torch.int64)
        if not len(kept) or kept[0] < 0 or kept[-1] >= target_size:
            raise UserError(
                f"A draft vocabulary of {len(kept)} tokens does not fit a target vocabulary of {target_size}; "
                "choose some of its ids."
            )
        if len(kept) == target_size:
            return cls(target_size, target_size)
        t2d = torch.zeros(target_size, dtype=torch.bool)
        t2d[kept] = True
        return cls(len(kept), target_size, kept - torch.arange(len(kept)), t2d)

    @classmethod
    def read(cls, path: str | os.PathLike[str], target_size: int) -> Self:
        """vocabulary.safetensors, checked: a file without maps stands for the whole target vocabulary.

        UserError: more draft tokens than the target has, maps that contradict each other, or one without the other.
        """
        with TensorFile(path) as file:
            maps = read_tensors(file)
        if not maps:
            return cls(target_size, target_size)
        if maps.keys() != {"d2t", "t2d"}:
            raise UserError(f"{path} holds {', '.join(maps)} where d2t and t2d belong; make the vocabulary again.")
        d2t, t2d = maps["d2t"], maps["t2d"]
        if len(d2t) > target_size or len(t2d) != target_size:
            raise UserError(
                f"{path} maps {len(d2t)} draft tokens into a vocabulary of {len(t2d)}, but the verifier's has "
                f"{target_size}; make the vocabulary for this verifier, with no more tokens than it has."
            )
        ids = torch.arange(len(d2t)) + d2t
        if not torch.equal(ids, t2d.nonzero().flatten()):
            raise UserError(f"{path} has a d2t (target = i + d2t[i]) that contradicts its t2d; make it again.")
        return cls.of_tokens(ids.tolist(), target_size)
