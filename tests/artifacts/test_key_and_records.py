"""Keys hold what changes a result; a record is whole or none."""

from pathlib import Path

import pytest

from artifacts.key import KeyFailure, key_of, key_parts
from artifacts.manifest import Ref
from artifacts.records import Record, Records
from artifacts.stage import Input, Node, Pending, Stage

STAGE = Stage("vocabulary", module="tasks.vocabulary", libraries=("numpy",))


def node(name: str = "", size: int = 8, digest: str = "aa", **options: object) -> Node:
    return Node(STAGE, name, {"size": size, "nested": {"a": 1}}, {"ids": Input(digest)}, **options)  # type: ignore[arg-type]


def test_names_knobs_and_estimates_are_in_no_key() -> None:
    modules = {"tasks.vocabulary": "00"}
    same = [node(), node("shard 3/8"), node(knobs={"batch": 4}), node(tokens=9, output_bytes=8)]
    assert len({key_of(key_parts(one, modules)) for one in same}) == 1
    others = [node(), node(size=9), node(digest="bb"), node(entry="merge")]
    keys = {key_of(key_parts(one, modules)) for one in others} | {key_of(key_parts(node(), {"tasks.vocabulary": "01"}))}
    assert len(keys) == 5


def test_a_key_that_cannot_be_computed_fails() -> None:
    unmade = Node(STAGE, "", {}, {"ids": Pending("corpus")})
    with pytest.raises(KeyFailure, match="which corpus has not made yet"):
        key_parts(unmade, {})
    foreign = Node(Stage("x", module="m", libraries=("no-such-library",)), "", {}, {})
    with pytest.raises(KeyFailure, match="no-such-library is not installed"):
        key_parts(foreign, {})


def test_an_optional_library_counts_by_its_version_or_its_absence() -> None:
    stage = Stage("x", module="m", libraries=("numpy",), optional=("no-such-library", "pydantic"))
    parts = key_parts(Node(stage, "", {}, {}), {})
    assert parts["library no-such-library"] == "absent" and parts["library pydantic"][0].isdigit()


def record(one: Node, modules: dict[str, str]) -> Record:
    parts = key_parts(one, modules)
    ref = Ref(kind="vocabulary", digest="cc", facts={"size": 8})
    lineage = {"seconds": 2.0, "tokens": 100}
    return Record(key=key_of(parts), stage="vocabulary", node="", parts=parts, outputs={"vocabulary": ref}, lineage=lineage)


def test_a_torn_record_is_none(tmp_path: Path) -> None:
    records = Records(tmp_path)
    one = record(node(), {})
    records.put(one)
    assert Records(tmp_path).get("vocabulary", one.key) == one
    path = records.path("vocabulary", one.key)
    path.write_bytes(path.read_bytes()[:40])
    assert Records(tmp_path).get("vocabulary", one.key) is None
