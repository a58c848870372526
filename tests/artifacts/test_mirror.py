"""A mirror: what arrives is what was sent, on either side, or it does not count."""

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from artifacts.key import key_of
from artifacts.manifest import MANIFEST_NAME, Ref
from artifacts.mirror import Mirror
from artifacts.mirror_files import PART, Damaged
from artifacts.records import Record, Records
from artifacts.store import Store
from artifacts.writer import ArtifactWriter
from errors import UserError
from tests.projects import ROOT, wait_for

LARGE = 2 * PART + 12345  # bytes: goes in parts


@pytest.fixture(params=["s3", "memory", "file"])
def mirror(request: pytest.FixtureRequest, tmp_path: Path) -> Mirror:
    if request.param == "s3":
        request.getfixturevalue("s3")
    place = f"{tmp_path}/there" if request.param == "file" else f"bucket/{uuid.uuid4().hex}"
    return Mirror.open(f"{request.param}://{place}")


def put(store: Store, *files: bytes) -> Ref:
    with store.workspace() as workspace:
        writer = ArtifactWriter("quarantine", workspace)
        for number, data in enumerate(files):
            writer.write(f"file.{number}", data)
        return store.commit(writer.seal(samples=0))


def record(*refs: Ref, **lineage: Any) -> Record:
    parts = {"stage": "validation", "outputs": str([ref.digest for ref in refs])}
    outputs = {str(number): ref for number, ref in enumerate(refs)}
    return Record(key=key_of(parts), stage="validation", node="one", parts=parts, outputs=outputs, lineage=lineage)


def overwrite(mirror: Mirror, path: str, change: str) -> None:
    data = bytearray(mirror.fs.cat_file(path))
    if change == "cut":
        del data[-1]
    elif change == "flip":
        data[len(data) // 2] ^= 1
    mirror.fs.rm_file(path) if change == "remove" else mirror.fs.pipe_file(path, bytes(data))


def test_blobs_and_records_go_there_and_come_back(mirror: Mirror, tmp_path: Path) -> None:
    here, other = Store(tmp_path / "here"), Store(tmp_path / "other")
    ref = put(here, b"twelve bytes", b"", os.urandom(70_000))
    assert mirror.there({ref.digest}) == set() and mirror.keys("validation") == set()
    assert mirror.stages() == []
    assert mirror.send_blob(here, ref.digest) > 70_000
    assert mirror.send_blob(here, ref.digest) == 0, "it is there by its manifest"
    one = record(ref, seconds=2.0)
    mirror.send_record(one)
    assert (
        mirror.stages() == ["validation"]
        and mirror.keys("validation") == {one.key}
        and mirror.there({ref.digest}) == {ref.digest}
    )
    records = Records(tmp_path / "other")
    assert list(mirror.records("validation", [one.key, "no such key"], records)) == [one]
    assert records.get("validation", one.key) == one
    mirror.fetch_blob(other, ref.digest, mirror.manifests([ref.digest])[ref.digest])
    for name in ("file.0", "file.1", "file.2"):
        assert (other.open(ref.digest) / name).read_bytes() == (here.open(ref.digest) / name).read_bytes()


def test_many_blobs_are_found_by_one_listing(mirror: Mirror, tmp_path: Path) -> None:
    store = Store(tmp_path / "here")
    refs = [put(store, b"%d" % number) for number in range(70)]
    for ref in refs[:66]:
        mirror.send_blob(store, ref.digest)
    assert mirror.there({ref.digest for ref in refs}) == {ref.digest for ref in refs[:66]}


@pytest.mark.parametrize("change", ["cut", "flip", "remove"])
@pytest.mark.parametrize("file", ["file.1", MANIFEST_NAME])
def test_damage_there_is_found_and_sent_again(mirror: Mirror, tmp_path: Path, change: str, file: str) -> None:
    here, other = Store(tmp_path / "here"), Store(tmp_path / "other")
    ref = put(here, b"twelve bytes", os.urandom(9000))
    mirror.send_blob(here, ref.digest)
    overwrite(mirror, mirror.blob(ref.digest, file), change)
    found = mirror.manifests([ref.digest])
    if file == MANIFEST_NAME:
        assert not found
    else:
        with pytest.raises(Damaged):
            mirror.fetch_blob(other, ref.digest, found[ref.digest])
        assert not other.has(ref.digest) and not list((tmp_path / "other" / "tmp").glob("*"))
    assert mirror.send_blob(here, ref.digest) > 0
    mirror.fetch_blob(other, ref.digest, mirror.manifests([ref.digest])[ref.digest])
    assert other.has(ref.digest)


def test_a_listing_with_sizes_finds_cut_files(mirror: Mirror, tmp_path: Path) -> None:
    store = Store(tmp_path)
    ref, whole = put(store, b"twelve bytes"), put(store, b"others")
    for one in (ref, whole):
        mirror.send_blob(store, one.digest)
    overwrite(mirror, mirror.blob(ref.digest, "file.0"), "cut")
    sizes = mirror.sizes()
    assert mirror.send_blob(store, whole.digest, sizes) == 0 < mirror.send_blob(store, ref.digest, sizes)
    assert mirror.fs.cat_file(mirror.blob(ref.digest, "file.0")) == b"twelve bytes"


@pytest.mark.parametrize("change", ["cut", "flip"])
def test_a_damaged_record_counts_as_none(mirror: Mirror, tmp_path: Path, change: str) -> None:
    one = record()
    mirror.send_record(one)
    overwrite(mirror, f"{mirror.root}/records/validation/{one.key}.json", change)
    records = Records(tmp_path / "other")
    (found,) = mirror.records("validation", [one.key], records)
    assert isinstance(found, Damaged) and records.get("validation", one.key) is None


def test_a_file_damaged_here_is_not_sent(mirror: Mirror, tmp_path: Path) -> None:
    store = Store(tmp_path)
    ref = put(store, b"twelve bytes")
    (store.folder(ref.digest) / "file.0").write_bytes(b"twelve bytez")
    with pytest.raises(Damaged, match="does not have the bytes that were written"):
        mirror.send_blob(store, ref.digest)
    assert mirror.sizes() == {}


@pytest.mark.parametrize("size", [LARGE, PART])
def test_a_large_file_is_checked_by_the_checksum_of_its_parts(s3: dict[str, str], tmp_path: Path, size: int) -> None:
    mirror, store = Mirror.open("s3://bucket/large"), Store(tmp_path)
    ref = put(store, os.urandom(1 << 20) * (size >> 20) + bytes(size % (1 << 20)))
    read: list[int] = []
    fetch = mirror.carrier.fetch
    mirror.carrier.fetch = lambda *_: read.append(1)  # type: ignore[method-assign]
    mirror.send_blob(store, ref.digest)
    assert not read, "nothing was read back: the ETag said enough"
    assert ("-" in mirror.fs.info(mirror.blob(ref.digest, "file.0"))["ETag"]) == (size == LARGE)
    mirror.carrier.fetch = fetch  # type: ignore[method-assign]
    other = Store(tmp_path / "other")
    mirror.fetch_blob(other, ref.digest, mirror.manifests([ref.digest])[ref.digest])
    assert other.has(ref.digest)


def test_bytes_that_change_on_their_way_are_found(s3: dict[str, str], tmp_path: Path) -> None:
    mirror, store = Mirror.open(f"s3://bucket/{uuid.uuid4().hex}"), Store(tmp_path)
    ref = put(store, b"twelve bytes")
    put_file, sent = mirror.fs.put_file, []

    def flip(local: str, remote: str, **options: Any) -> None:
        put_file(local, remote, **options)
        sent.append(remote)
        overwrite(mirror, remote, "flip")

    mirror.fs.put_file = flip
    try:
        with pytest.raises(Damaged, match="does not have the bytes that were sent"):
            mirror.send_blob(store, ref.digest)
    finally:
        del mirror.fs.put_file
    assert len(sent) == 2, "once more before it is given up"
    assert mirror.there({ref.digest}) == set(), "no manifest, no blob"


TRANSFER = """
import sys
from pathlib import Path
from artifacts.mirror import Mirror
from artifacts.store import Store
mirror, store, digest = Mirror.open(sys.argv[2]), Store(Path(sys.argv[3])), sys.argv[4]
if sys.argv[1] == "send":
    mirror.send_blob(store, digest)
else:
    mirror.fetch_blob(store, digest, mirror.manifests([digest])[digest])
"""


def start(*arguments: str) -> "subprocess.Popen[str]":
    """A process that sends or fetches a blob."""
    return subprocess.Popen([sys.executable, "-c", TRANSFER, *arguments], cwd=ROOT, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("protocol", ["s3", "file"])
def test_a_push_killed_half_way_leaves_nothing_that_counts(s3: dict[str, str], tmp_path: Path, protocol: str) -> None:
    store = Store(tmp_path / "here")
    ref = put(store, *(os.urandom(50_000) for _ in range(80)))
    uri = f"{protocol}://{f'bucket/{uuid.uuid4().hex}' if protocol == 's3' else tmp_path / 'there'}"
    mirror = Mirror.open(uri)
    push = start("send", uri, str(store.root), ref.digest)
    wait_for(lambda: len(mirror.sizes()) >= 5, 30, push)
    os.kill(push.pid, signal.SIGKILL)
    push.communicate()
    assert 5 <= len(mirror.sizes()) < 80
    assert mirror.there({ref.digest}) == set()
    mirror.send_blob(store, ref.digest)
    other = Store(tmp_path / "other")
    mirror.fetch_blob(other, ref.digest, mirror.manifests([ref.digest])[ref.digest])
    assert other.has(ref.digest)


def test_a_fetch_killed_half_way_leaves_nothing_that_counts(s3: dict[str, str], tmp_path: Path) -> None:
    here, other = Store(tmp_path / "here"), Store(tmp_path / "other")
    ref = put(here, *(os.urandom(50_000) for _ in range(80)))
    uri = f"s3://bucket/{uuid.uuid4().hex}"
    mirror = Mirror.open(uri)
    mirror.send_blob(here, ref.digest)
    fetch = start("fetch", uri, str(other.root), ref.digest)
    wait_for(lambda: len(list(other.root.glob("tmp/*/*/file.*"))) >= 5, 30, fetch)
    os.kill(fetch.pid, signal.SIGKILL)
    fetch.communicate()
    assert not other.has(ref.digest)
    other.sweep()
    assert not list(other.root.glob("tmp/*"))
    mirror.fetch_blob(other, ref.digest, mirror.manifests([ref.digest])[ref.digest])
    assert other.has(ref.digest)


def test_an_address_that_cannot_be_used_is_one_sentence() -> None:
    with pytest.raises(UserError, match=r"store.mirror names the protocol 'nosuch', which cannot be used .*: correct") as found:
        Mirror.open("nosuch://key:secret@bucket")
    assert "secret" not in str(found.value)
