"""Texts of conversations in a report: only where ``report.show_text`` asks for them."""

import json
from itertools import islice
from pathlib import Path

from artifacts.store import BlobMissing, Store
from flows.train_draft import DraftRun
from tasks.formats import ASIDE, read_tokens
from tasks.texts import decoder

_SHOWN_TEXTS, _SHOWN_CHARACTERS = 10, 200


def quarantined_texts(store: Store, made: DraftRun, folder: Path) -> list[str]:
    """The first characters of up to ten quarantined samples, decoded from their ids; those whose ids are gone are left out."""
    source = made.verifier.source
    assert source is not None
    shown = []
    try:
        decode = decoder(store.open(source.ref.digest) if source.ref else str(source.path))
        with open(folder / ASIDE, encoding="utf-8") as file:
            lines = (json.loads(line) for line in file)
            for line in islice((line for line in lines if line["reasons"]), _SHOWN_TEXTS):
                ids, offsets = read_tokens(store.open(line["ids"]))
                start, stop = offsets[line["sample"] : line["sample"] + 2]
                text = decode([int(i) for i in ids[start : min(stop, start + 4 * _SHOWN_CHARACTERS)] if i >= 0])
                quoted = json.dumps(text[:_SHOWN_CHARACTERS], ensure_ascii=False)
                shown.append(f"`{line['id']}` ({', '.join(line['reasons'])}):\n\n    {quoted}")
    except BlobMissing as missing:
        shown.append(f"{missing}.")
    return ["### Beginnings of quarantined samples", *shown] if shown else []
