"""Strict JSON: what two parsers could read differently, or cannot be written again, is a reject with its reason."""

import json
import math
import re
from typing import Any

from kimi_adapters.chat_reasons import Reason, Rejected

MAX_DEPTH = 64
# Possessive, and the end of the text closes a string too: a torn line with many \" would take time by its square.
_STRUCTURE = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)


def loads(text: str) -> Any:
    """Parse JSON text. ``Rejected``: NaN, infinities, a key twice in one object, deep nesting; ``ValueError``: no JSON."""
    if text.count("[") + text.count("{") > MAX_DEPTH and _depth(text) > MAX_DEPTH:
        raise Rejected(Reason.TOO_DEEP)
    return _DECODER.decode(text)


def _depth(text: str) -> int:
    deepest = depth = 0
    for token in _STRUCTURE.finditer(text):
        first = token.group()[0]
        depth += (first in "[{") - (first in "]}")
        deepest = max(deepest, depth)
    return deepest


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Rejected(Reason.DUPLICATE_KEY)
    return found


def _constant(_: str) -> float:
    raise Rejected(Reason.NOT_FINITE)


def _number(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):
        raise Rejected(Reason.NOT_FINITE)
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, parse_float=_number)
