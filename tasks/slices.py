"""What is said of each sample beside its tokens: a hash of its normalised text, and the slices that reports go by."""

import re
import unicodedata
from collections.abc import Iterable

from blake3 import blake3

HASH_DIGITS = 32
_SEEN_OF_TEXT = 4000  # characters that the script is told by
_FENCE = "```"
_CODE = re.compile(r"[{}();=<>\[\]]|^\s*(?:def|class|import|return|#include|public|const|let|var|fn)\b", re.MULTILINE)
_CODE_SHARE = 0.06
_SCRIPTS = {
    "cyrillic": "\u0400-\u052f",
    "greek": "\u0370-\u03ff",
    "hebrew": "\u0590-\u05ff",
    "arabic": "\u0600-\u06ff\u0750-\u077f",
    "devanagari": "\u0900-\u097f",
    "thai": "\u0e00-\u0e7f",
    "hangul": "\u1100-\u11ff\uac00-\ud7af",
    "kana": "\u3040-\u30ff",
    "han": "\u3400-\u4dbf\u4e00-\u9fff",
    "latin": "A-Za-z\u00c0-\u024f\u1e00-\u1eff",
}
_LETTERS = {name: re.compile(f"[{ranges}]") for name, ranges in _SCRIPTS.items()}


def normalised(text: str) -> str:
    """Text as duplicates are told by: NFKC, casefold, runs of white space as one blank."""
    folded = text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()
    return " ".join(folded.split())


def text_digest(parts: Iterable[str]) -> bytes:
    """BLAKE3 of normalised parts, the marks between them included. ``UnicodeEncodeError`` on a lone surrogate."""
    return blake3("\x1e".join(map(normalised, parts)).encode()).digest()


def script_of(text: str) -> str:
    """``code``, the script that most letters belong to (Japanese is ``kana``), or ``other`` where there are none."""
    text = text[:_SEEN_OF_TEXT]
    if _FENCE in text or len(_CODE.findall(text)) > _CODE_SHARE * len(text):
        return "code"
    if text.isascii():
        return "latin" if _LETTERS["latin"].search(text) else "other"
    counts = {name: len(letters.findall(text)) for name, letters in _LETTERS.items()}
    if counts["kana"]:
        counts["kana"] += counts.pop("han")
    most = max(counts, key=lambda name: counts[name])
    return most if counts[most] else "other"
