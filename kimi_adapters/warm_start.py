"""A parent draft as the start of another: its tensors, with the rows that stand for draft tokens moved by token id."""

from collections.abc import Mapping

import torch
from torch import Tensor

from errors import UserError
from kimi_adapters.draft import HEAD, VerifierRows
from kimi_adapters.draft_vocabulary import DraftVocabulary


def parent_tensors(
    tensors: Mapping[str, Tensor], before: DraftVocabulary, rows: VerifierRows, vocabulary: DraftVocabulary
) -> dict[str, Tensor]:
    """The parent's tensors, its `lm_head` [draft vocabulary, H] as `vocabulary` has it.

    `tensors` under speculators' names, their head as the parent's vocabulary `before` has it. A token that both
    vocabularies hold keeps the parent's row, wherever it stands in either; a new one gets the verifier's row, which an
    untrained draft would have there. Embeddings are of the verifier's tokens and stay as the parent has them; what it is
    published without, as engines take it from the verifier, is the verifier's here too. UserError: a head whose rows are not
    the vocabulary's.
    """
    found = {name: value for name, value in tensors.items() if name not in ("d2t", "t2d")}
    head = found.get(HEAD)
    if head is None:
        return found
    if head.shape != (before.size, rows.lm_head.shape[1]):
        raise UserError(
            f"The parent draft's lm_head is of shape {list(head.shape)} where its vocabulary of {before.size} tokens needs "
            f"{[before.size, rows.lm_head.shape[1]]}; give a draft that is whole."
        )
    kept, place = kept_tokens(before, vocabulary)
    moved = rows.lm_head.clone()
    moved[kept] = head[place].to(moved.dtype)
    return {**found, HEAD: moved}


def kept_tokens(before: DraftVocabulary, vocabulary: DraftVocabulary) -> tuple[Tensor, Tensor]:
    """The draft ids of `vocabulary` whose tokens `before` holds too, and their ids there, both [kept] int64."""
    place = torch.full((vocabulary.target_size,), -1)
    place[before.targets()] = torch.arange(before.size)
    found = place[vocabulary.targets()]
    kept = (found >= 0).nonzero().flatten()
    return kept, found[kept]
