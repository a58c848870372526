"""Blobs: committed whole or not at all, found damaged when they are."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from artifacts.manifest import MANIFEST_NAME, Ref
from artifacts.store import BlobMissing, Store
from artifacts.writer import ArtifactWriter
from errors import UserError


def put(store: Store, data: bytes = b"twelve bytes", name: str = "a/file.bin") -> Ref:
    with store.workspace() as workspace:
        writer = ArtifactWriter("quarantine", workspace)
        writer.write(name, data)
        return store.commit(writer.seal(samples=0))


def test_the_digest_names_content_and_paths(tmp_path: Path) -> None:
    store, other = Store(tmp_path / "a"), Store(tmp_path / "elsewhere" / "b")
    ref = put(store)
    assert put(store) == ref == put(other)
    assert put(store, b"other bytes").digest != ref.digest
    assert put(store, name="b/file.bin").digest != ref.digest
    assert (store.open(ref.digest) / "a/file.bin").read_bytes() == b"twelve bytes"


def test_no_manifest_no_blob(tmp_path: Path) -> None:
    store = Store(tmp_path)
    ref = put(store)
    (store.folder(ref.digest) / MANIFEST_NAME).unlink()
    assert not store.has(ref.digest)
    assert put(store) == ref
    assert store.has(ref.digest)


@pytest.mark.parametrize("damage", ["cut", "remove", "torn manifest"])
def test_damage_is_found_when_a_blob_is_opened(tmp_path: Path, damage: str) -> None:
    store = Store(tmp_path)
    ref = put(store)
    file, manifest = store.folder(ref.digest) / "a/file.bin", store.folder(ref.digest) / MANIFEST_NAME
    if damage == "cut":
        os.truncate(file, 11)
    elif damage == "remove":
        file.unlink()
    else:
        manifest.write_bytes(manifest.read_bytes()[:20])
    with pytest.raises(BlobMissing):
        store.open(ref.digest)
    assert put(store) == ref
    assert (store.open(ref.digest) / "a/file.bin").read_bytes() == b"twelve bytes"


def _write_for_ever(root: Path) -> None:
    store = Store(root)
    with store.workspace() as workspace:
        writer = ArtifactWriter("quarantine", workspace)
        file = writer.open("big.bin")
        while True:
            file.write(b"x" * 65536)
            time.sleep(0.001)


def test_a_killed_writer_leaves_nothing_but_what_the_sweep_takes(tmp_path: Path) -> None:
    writer = multiprocessing.get_context("spawn").Process(target=_write_for_ever, args=(tmp_path,))
    writer.start()
    store = Store(tmp_path)
    deadline = time.monotonic() + 30
    while not list((tmp_path / "tmp").glob("*/*/big.bin")) and time.monotonic() < deadline:
        time.sleep(0.05)
    store.sweep()
    assert len(list((tmp_path / "tmp").iterdir())) == 1, "a living writer's workspace is kept"
    assert writer.pid is not None
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    store.sweep()
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not (tmp_path / "blobs").exists()


def test_a_full_store_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    store = Store(tmp_path)
    put(store, b"x" * 1000)
    store.require_room(500, 2000, "the states")
    with pytest.raises(UserError, match=r"need 5,000 bytes .* room for 1,000"):
        store.require_room(5000, 2000, "the states")
    with pytest.raises(UserError, match="free space"):
        store.require_room(2**60, None, "the states")


def test_a_reference_takes_only_the_facts_of_its_kind() -> None:
    with pytest.raises(ValueError, match="no fact 'path'"):
        Ref(kind="quarantine", digest="0", facts={"path": "/somewhere"})
    with pytest.raises(ValueError, match="unknown artifact kind"):
        Ref(kind="nonsense", digest="0", facts={})
    with pytest.raises(ValueError, match="has type str"):
        Ref(kind="quarantine", digest="0", facts={"samples": "three"})
