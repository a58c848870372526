"""A miss is explained by its nearest kin, however many records there are."""

import os
from pathlib import Path

import pytest

from artifacts.key import Parts, key_of
from artifacts.kin import Kin
from artifacts.manifest import Ref
from artifacts.records import Record, Records


def parts(entry: str = "compute", **changed: str) -> Parts:
    return {"stage": "vocabulary", "entry": entry, "setting vocabulary.size": "8", "input ids": "aa", "module m": "00"} | {
        name.replace("_", " ", 1): value for name, value in changed.items()
    }


def put(records: Records, mine: Parts, age: int = 0, tokens: int = 100, seconds: float = 2.0) -> None:
    ref = Ref(kind="vocabulary", digest="cc", facts={"size": 8})
    lineage = {"seconds": seconds, "estimated_by": tokens}
    key = key_of(mine)
    records.put(Record(key=key, stage="vocabulary", node="", parts=mine, outputs={"vocabulary": ref}, lineage=lineage))
    os.utime(records.path("vocabulary", key), (1e9 - age, 1e9 - age))


def test_a_miss_names_what_differs_from_its_nearest_kin(tmp_path: Path) -> None:
    records = Records(tmp_path)
    assert Kin(records).explain("vocabulary", parts()) == ["first run"]
    put(records, parts())
    put(records, parts(**{"setting_vocabulary.size": "9", "input_ids": "bb"}))
    kin = Kin(records)
    assert kin.explain("vocabulary", parts(input_ids="dd")) == ["input ids"]
    assert kin.explain("vocabulary", parts(**{"setting_vocabulary.size": "9", "input_ids": "bb", "module_m": "11"})) == [
        "module m"
    ]
    assert kin.explain("vocabulary", parts(**{"setting_vocabulary.size": "7"})) == ["setting vocabulary.size"]
    assert kin.explain("vocabulary", parts("merge")) == ["first run"]
    assert kin.rate("vocabulary", "compute") == 50.0
    assert kin.rate("vocabulary", "merge") is None and kin.rate("corpus", "compute") is None


def test_the_rate_of_a_shared_pass_is_that_of_all_its_nodes(tmp_path: Path) -> None:
    records = Records(tmp_path)
    for number, seconds in enumerate((9.4, 0.2, 0.2, 0.2)):
        put(records, parts(input_ids=f"shard {number}"), seconds=seconds)
    assert Kin(records).rate("vocabulary", "compute") == pytest.approx(40.0)


def test_the_same_shard_is_found_beyond_the_newest(tmp_path: Path) -> None:
    """An edit of a stage over many shards: each is explained by the edit, not by the ids of a newer shard."""
    records = Records(tmp_path)
    for number in range(400):
        put(records, parts(input_ids=f"shard {number}"), age=number)
    kin = Kin(records)
    explained = {tuple(kin.explain("vocabulary", parts(input_ids=f"shard {n}", module_m="11"))) for n in range(400)}
    assert explained == {("module m",)}
    assert kin.explain("vocabulary", parts(input_ids="new")) == ["input ids"]
