"""A download's identity is the hub's own digests while nobody has touched it, and the same when it has to be read."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub._local_folder import write_download_metadata

from errors import UserError
from kimi_adapters.tensor_file import TensorFile
from kimi_adapters.tiny_checkpoint import make
from kimi_adapters.torch_file import read_tensors, write_tensors
from kimi_adapters.weights import INDEX, weight_files
from running import progress
from running.cli import main
from running.identity import FileMemo
from tasks import weights_identity
from tasks.weights_identity import role_digests

COMMIT = "0" * 40


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("kimi"))


@pytest.fixture
def download(made: Path, tmp_path: Path) -> Path:
    """What `hf download --local-dir` leaves: the files, and beside them what the hub's client notes when each is there."""
    folder = tmp_path / "model"
    folder.mkdir()
    for path in made.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    for path in weight_files(folder):
        note(folder, path)
    return folder


def note(folder: Path, path: Path, etag: str | None = None) -> None:
    write_download_metadata(folder, path.name, COMMIT, etag or weights_identity._sha256(path, lambda count: None))


def seen(folder: Path) -> tuple[dict[str, str], int]:
    """The roles, and how many bytes were read for them."""
    counts: list[int] = []
    return role_digests(folder, counts.append), sum(counts)


def flip(path: Path, place: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_an_untouched_download_is_not_read(download: Path, made: Path) -> None:
    roles, count = seen(download)
    assert count == 0 and set(roles) == {"embed", "layer", "lm_head", "norm"}
    content, count = seen(made)
    assert count > 1_000_000 and set(content) == set(roles) and not set(content.values()) & set(roles.values())


def later(path: Path) -> None:
    os.utime(path)


def changed_back(path: Path) -> None:
    """Contents from elsewhere with an old time, as `rsync --times` leaves them: only the inode's change tells."""
    modified = path.stat().st_mtime_ns
    content = path.read_bytes()
    path.write_bytes(content)
    os.utime(path, ns=(modified, modified))


TOUCHED: dict[str, Callable[[Path, Path], object]] = {
    "a later time": lambda folder, path: later(path),
    "written again with its old time": lambda folder, path: changed_back(path),
    "no LFS file": lambda folder, path: note(folder, path, "c" * 40),
    "a time before the file": lambda folder, path: earlier(folder, path),
    "another size in the index": lambda folder, path: other_total(folder),
}


def earlier(folder: Path, path: Path) -> None:
    file = folder / weights_identity.HUB / f"{path.name}.metadata"
    commit, etag, _ = file.read_text().split()
    file.write_text(f"{commit}\n{etag}\n{path.stat().st_ctime - 1}\n")


def other_total(folder: Path) -> None:
    index = json.loads((folder / INDEX).read_text())
    index["metadata"]["total_size"] += 1
    (folder / INDEX).write_text(json.dumps(index))


@pytest.mark.parametrize("case", TOUCHED)
def test_a_touched_download_is_read_and_stays_the_same(download: Path, case: str) -> None:
    before, _ = seen(download)
    TOUCHED[case](download, weight_files(download)[1])
    after, count = seen(download)
    assert after == before and count > 0


@pytest.mark.parametrize("keep_time", [False, True])
def test_a_changed_tensor_is_seen_whatever_the_file_says_of_its_time(download: Path, keep_time: bool) -> None:
    before, _ = seen(download)
    path = weight_files(download)[1]
    modified = path.stat().st_mtime_ns
    flip(path)
    if keep_time:
        os.utime(path, ns=(modified, modified))
    assert seen(download)[0] != before


def test_a_copy_with_its_notes_is_the_same_and_without_them_goes_by_content(download: Path, made: Path, tmp_path: Path) -> None:
    before, _ = seen(download)
    shutil.copytree(download, tmp_path / "copy")
    copied, count = seen(tmp_path / "copy")
    assert copied == before and count > 0, "a copy's inodes are new"
    os.rename(download, tmp_path / "moved")
    assert seen(tmp_path / "moved") == (before, 0), "a moved directory's are not"
    shutil.rmtree(tmp_path / "moved" / ".cache")
    assert seen(tmp_path / "moved")[0] == seen(made)[0]


def test_other_files_change_nothing(download: Path) -> None:
    """A README, or a file that holds the vision tower alone."""
    other = download / "vision.safetensors"
    index = json.loads((download / INDEX).read_text())
    vision: dict[str, Any] = {}
    for path in weight_files(download):
        with TensorFile(path) as file:
            tensors = read_tensors(file)
        mine = {name: tensors.pop(name) for name in list(tensors) if name.startswith(("vision", "mm_"))}
        if mine:
            vision |= mine
            with open(path, "wb") as out:
                write_tensors(out, tensors)
            note(download, path)
    with open(other, "wb") as out:
        write_tensors(out, vision)
    note(download, other)
    index["weight_map"] |= dict.fromkeys(vision, other.name)
    (download / INDEX).write_text(json.dumps(index))
    before, count = seen(download)
    assert vision and count == 0
    (download / "README.md").write_text("Edited.")
    flip(other)
    assert seen(download) == (before, 0)


def test_a_truncated_download_is_told(download: Path) -> None:
    path = weight_files(download)[0]
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(UserError, match="not a whole safetensors file"):
        role_digests(download, lambda count: None)


def test_large_tensors_are_hashed_in_pieces_to_the_same_digest(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = role_digests(made, lambda count: None)
    monkeypatch.setattr(weights_identity, "_PIECE", 1000)
    assert role_digests(made, lambda count: None) == whole


def test_files_are_read_once_and_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / f"{number}" for number in range(5)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * 1000)
        os.utime(path, (time.time() - 60, time.time() - 60))
    memo = FileMemo(tmp_path / "state")
    digests = memo.digests(paths)
    assert len(set(digests)) == 5 and memo.digest(paths[2]) == digests[2]
    monkeypatch.setattr("running.identity.digest_of_file", None)
    assert memo.digests(paths) == digests


def test_a_plan_says_how_far_the_reading_is(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_EVERY", 0.0)
    talk = {"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]}
    (tmp_path / "a.jsonl").write_text(json.dumps(talk) + "\n")
    settings = {
        "verifier": {"directory": str(made)},
        "data": {"conversations": [str(tmp_path / "a.jsonl")]},
        "vocabulary": {"size": 512},
        "store": {"path": str(tmp_path / "store"), "state": str(tmp_path / "state")},
    }
    (tmp_path / "settings.yaml").write_text(json.dumps(settings))
    assert main(["plan", str(tmp_path / "settings.yaml")]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if f"reading {made}: " in line]
    assert lines and all("GB/s" in line for line in lines)
