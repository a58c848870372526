"""Token ids as they were served: they win over text, because text tokenised again may give others."""

from typing import Any, NamedTuple

from kimi_adapters.chat_reasons import Reason, Rejected

_PAIRS = (("prompt_ids", "answer_ids"), ("prompt_token_ids", "token_ids"))
_MASKED = ("input_ids", "loss_mask")
KEYS = (*_PAIRS[0], *_PAIRS[1], *_MASKED)


class Served(NamedTuple):
    """Token ids and a mask of equal length, 1 on what was answered."""

    ids: list[int]
    mask: list[int]


def served_ids(row: dict[str, Any], vocabulary: int) -> Served | None:
    """The ids of a row with ``prompt_ids`` and ``answer_ids`` (ours), ``prompt_token_ids`` and ``token_ids`` (vLLM's) or
    ``input_ids`` and ``loss_mask``; None where it has none. ``Rejected`` where they are not whole or not in the vocabulary."""
    for names in (*_PAIRS, _MASKED):
        first, second = (row.get(name) for name in names)
        if first is None and second is None:
            continue
        if first is None or second is None:
            raise Rejected(Reason.IDS_INCOMPLETE)
        ids = _whole_numbers(first)
        if names == _MASKED:
            mask = _mask(second, len(ids))
        else:
            answer = _whole_numbers(second)
            mask = [0] * len(ids) + [1] * len(answer)
            ids = ids + answer
        if ids and (min(ids) < 0 or max(ids) >= vocabulary):
            raise Rejected(Reason.IDS_NOT_IN_VOCABULARY)
        return Served(ids, mask)
    return None


def _whole_numbers(value: Any) -> list[int]:
    if not isinstance(value, list) or not all(type(number) is int for number in value):
        raise Rejected(Reason.IDS_NOT_NUMBERS)
    return value


def _mask(value: Any, length: int) -> list[int]:
    if not isinstance(value, list) or len(value) != length:
        raise Rejected(Reason.IDS_BAD_MASK)
    if not all(isinstance(one, int) and one in (0, 1) for one in value):
        raise Rejected(Reason.IDS_BAD_MASK)
    return [int(one) for one in value]
