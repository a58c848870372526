"""What two processes read of one checkpoint is read from the disk once, and the page cache forgets a layer when told."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kimi_adapters.busy import Busy
from kimi_adapters.reading import drop_pages, layer_ranges
from kimi_adapters.weights import Checkpoint
from running.pace import join
from tests.kimi_adapters.paced_pass import disk_bytes, states_of
from tests.projects import ROOT


def forget(path: Path) -> None:
    """Drop a file from the page cache. Skips where the file system has no disk behind it."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        before = disk_bytes()
        file.read(1 << 20)
        if disk_bytes() == before:
            pytest.skip("this file system is not read from a disk that the kernel counts")
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def started(verifier: Path, folder: Path) -> "subprocess.Popen[str]":
    """A process of its own that takes tokens through the layers, in step with those of the same folder."""
    place = join(folder)
    command = [sys.executable, "-m", "tests.kimi_adapters.paced_pass", *map(str, (verifier, folder, place))]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, pass_fds=[place])
    os.close(place)
    return process


def test_two_processes_read_the_weights_once(cut_verifier: Path, tmp_path: Path) -> None:
    checkpoint = Checkpoint(cut_verifier)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the children have it: the order of sums
    alone = states_of(checkpoint, None)  # and what a pass touches of torch's code is in memory from here on
    torch.set_num_threads(threads)
    forget(cut_verifier / "model.safetensors")
    pair = [started(cut_verifier, tmp_path) for _ in range(2)]
    said = [json.loads(process.communicate(timeout=300)[0]) for process in pair]
    table = checkpoint.location("embed_tokens.weight")[0].entry("model.embed_tokens.weight")
    size = checkpoint.layer_bytes + table.end - table.start
    assert 0.9 * size < sum(one["read"] for one in said) < 1.2 * size
    assert [one["layers"] for one in said] == [4, 4]
    assert {one["states"] for one in said} == {alone}


def test_seconds_of_several_threads_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 1.0, 5.0, 7.0])
    monkeypatch.setattr("kimi_adapters.busy.time", SimpleNamespace(monotonic=lambda: next(times)))
    busy = Busy()
    with busy, busy:
        pass
    with busy:
        pass
    assert busy.seconds == 3.0, "one second, then two; what lies between does not count"


def test_a_layer_that_nobody_needs_leaves_the_page_cache(cut_verifier: Path) -> None:
    checkpoint = Checkpoint(cut_verifier)
    path = cut_verifier / "model.safetensors"
    forget(path)
    path.read_bytes()
    drop_pages(layer_ranges(checkpoint, 2))
    cold = []
    for index in range(checkpoint.config.num_layers):
        before = disk_bytes()
        checkpoint.layer(index)
        cold.append(disk_bytes() - before)
    size = sum(end - start for _, start, end in layer_ranges(checkpoint, 2))
    assert cold[2] > 0.5 * size > 5 * (sum(cold) - cold[2]), "pages that it shares with its neighbours stay"
