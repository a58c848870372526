"""How many tokens a pass needs so that computing takes as long as reading the weights, by what a store's records measured."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from artifacts.records import Record
from artifacts.stage import Input, Node


def hiding_tokens(node: Node, records: Sequence[Record]) -> int | None:
    """T = tokens a second through all layers · bytes of the weights / bytes read a second; None where it was not measured.

    Of ``records``, newest first, count those of the same verifier on the newest one's kind of device. A pass whose layers
    were already on the device read nothing and says nothing of reading.
    """
    source = node.inputs.get("verifier")
    wanted = source.digest if isinstance(source, Input) else None
    same = [record for record in records if record.lineage["inputs"].get("verifier", {}).get("digest") == wanted]
    passes = [record.lineage["pass"] for record in same if record.lineage.get("gpu") == same[0].lineage.get("gpu")]
    computing = [one["tokens"] / one["seconds"] for one in passes if one["seconds"] > 0]
    whole = max((one["bytes"] for one in passes), default=0)
    reading = [one["bytes"] / one["reading"] for one in passes if _is_whole(one, whole)]
    return round(median(computing) * whole / median(reading)) if computing and reading else None


def _is_whole(one: dict[str, Any], whole: int) -> bool:
    return bool(one["reading"] > 0 and one["bytes"] == whole > 0)
