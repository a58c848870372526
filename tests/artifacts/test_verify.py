"""Every kind of file cut by a byte and flipped by a bit is found, and only what is damaged is put aside."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from artifacts.aliases import Aliases
from artifacts.disk import checked, unchecked
from artifacts.forgotten import FORGOTTEN, Forgotten, id_digest
from artifacts.kinds import KINDS
from artifacts.manifest import MANIFEST_NAME
from artifacts.records import Records
from artifacts.store import BlobMissing, Store
from artifacts.verify import Finding, repair, verify
from errors import UserError
from tests.artifacts.pipelines import Pipeline, make_pipeline


def found(root: Path, deep: bool) -> list[Finding]:
    return list(verify(Store(root), root / "state", deep, lambda *_: None))


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_every_kind_cut_or_flipped(tmp_path: Path, kind: str) -> None:
    made = Pipeline(Store(tmp_path), Records(tmp_path))
    whole = made.blob(kind, {"other.bin": b"other" * 50})
    ref = made.blob(kind, {"a/file.bin": bytes(range(256)) * 20, "empty.bin": b""})
    file = made.store.folder(ref.digest) / "a/file.bin"
    assert found(tmp_path, True) == []

    data = file.read_bytes()
    file.write_bytes(data[:700] + bytes([data[700] ^ 4]) + data[701:])
    assert found(tmp_path, False) == [], "a flipped bit keeps the size"
    (flipped,) = found(tmp_path, True)
    assert flipped.digest == ref.digest and flipped.why == "a/file.bin has other bytes" and flipped.what == kind

    os.truncate(file, len(data) - 1)
    with pytest.raises(BlobMissing, match=r"a/file\.bin of blob"):
        made.store.open(ref.digest)
    (cut,) = found(tmp_path, False)
    assert cut.digest == ref.digest and "5,119 bytes instead of 5,120" in cut.why
    aside = repair(made.store, cut)
    assert aside is not None and (aside / MANIFEST_NAME).exists()
    assert not made.store.has(ref.digest) and made.store.has(whole.digest) and found(tmp_path, True) == []
    assert made.blob(kind, {"a/file.bin": data, "empty.bin": b""}) == ref and found(tmp_path, True) == []


def _files(root: Path) -> dict[str, Path]:
    made = make_pipeline(root)
    draft = made.refs["training first draft"]
    made.run("20261101T000000-aaaa", ["training first"])
    Aliases(root / "state").move("ab" * 32, "champion", draft.digest, None, "the first")
    Forgotten(root).put({"cd" * 32: [id_digest("a0")]})
    return {
        "manifest": made.store.folder(draft.digest) / MANIFEST_NAME,
        "record": made.records.path("training", made.keys["training first"]),
        "run manifest": root / "runs" / "20261101T000000-aaaa.json",
        "alias": root / "state/aliases" / ("ab" * 32) / "champion.json",
        "forgotten": root / FORGOTTEN,
    }


@pytest.mark.parametrize("name", ["manifest", "record", "run manifest", "alias", "forgotten"])
def test_any_bit_of_the_stores_own_files(tmp_path: Path, name: str) -> None:
    path = _files(tmp_path)[name]
    data = path.read_bytes()
    assert found(tmp_path, True) == []
    for position in range(0, len(data), max(1, len(data) // 150)):
        for change in (data[:position] + bytes([data[position] ^ (1 << position % 8)]) + data[position + 1 :], data[:position]):
            path.write_bytes(change)
            damaged = found(tmp_path, False)
            assert [finding.damaged for finding in damaged] == [True], f"byte {position} of {len(data)}"
    path.write_bytes(data[:-1])
    assert len(found(tmp_path, False)) == 1
    aside = repair(Store(tmp_path), found(tmp_path, False)[0])
    assert (aside is None) == (name in ("alias", "forgotten")), "what nothing can make again stays where it is"


def test_the_check_is_of_the_bytes() -> None:
    body = json.dumps({"a": 1}, indent=1).encode()
    assert json.loads(checked(body))["a"] == 1 and unchecked(checked(body)) == body
    assert unchecked(body) == body, "files from before there was a check"
    with pytest.raises(ValueError, match="not those that were written"):
        unchecked(checked(body).replace(b'"a"', b'"b"'))


def test_a_damaged_list_of_forgotten_conversations_stops_everything(tmp_path: Path) -> None:
    Forgotten(tmp_path).put({"cd" * 32: [id_digest("a0")]})
    path = tmp_path / FORGOTTEN
    path.write_bytes(path.read_bytes().replace(b'"sources"', b'"source5"'))
    with pytest.raises(UserError, match="forgotten conversations would come back"):
        Forgotten(tmp_path)


def test_what_a_killed_process_left_is_no_damage(tmp_path: Path) -> None:
    made = make_pipeline(tmp_path)
    draft = made.store.folder(made.refs["training first draft"].digest)
    (draft / MANIFEST_NAME).unlink()
    (left,) = found(tmp_path, True)
    assert not left.damaged and left.path == draft and "has no manifest" in left.why


def test_progress_counts_every_byte(tmp_path: Path) -> None:
    made = make_pipeline(tmp_path)
    told: list[tuple[int, int]] = []
    note: Callable[[int, int], None] = lambda done, total: told.append((done, total))  # noqa: E731
    assert list(verify(made.store, tmp_path / "state", True, note)) == []
    assert told[-1][0] == told[-1][1] == made.store.used_bytes()
