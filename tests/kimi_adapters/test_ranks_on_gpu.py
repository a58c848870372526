"""A training on two GPUs, joined by NCCL as torchrun's environment names them, is that on one."""

import multiprocessing
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kimi_adapters.process_group import joined
from tests.kimi_adapters.rank_processes import ended
from tests.kimi_adapters.test_data_parallel import RECIPE, run

RANKS = 2
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < RANKS, reason="fewer than two NVIDIA GPUs")]
ON_GPU = replace(RECIPE, pack_tokens=128, head_dim=16, epochs=6)


def rank(number: int, count: int, port: int, folder: Path, name: str, sharding: str) -> None:
    """One process of a training, in which nothing was compiled before."""
    named = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({key: str(value) for key, value in named.items()})
    with joined("cuda") as ranks:
        run(folder, name, ON_GPU, ranks, sharding)


def on(count: int, folder: Path, name: str, sharding: str = "none") -> dict[str, Any]:
    """The result of a training on so many GPUs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=rank, args=(i, count, port, folder, name, sharding)) for i in range(count)]
    assert ended(processes, 300) == [0] * count
    result: dict[str, Any] = torch.load(folder / f"{name}.pt", map_location="cpu")
    return result


@pytest.mark.parametrize("sharding", ["none", "fsdp"])
def test_two_gpus_train_what_one_does(tmp_path: Path, sharding: str) -> None:
    """Rates and tokens are the same. Weights of another order of sums are rounded to other bfloat16 numbers now and then."""
    one, two = on(1, tmp_path, "one"), on(RANKS, tmp_path, "two", sharding)
    assert len(two["curves"]) == len(one["curves"]) > 6
    for ours, theirs in zip(two["curves"], one["curves"], strict=True):
        assert (ours["lr"], ours["tokens"]) == (theirs["lr"], theirs["tokens"])
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=0.02)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=0.1), "a mean over ranks would be half of it"
    for name, value in one["weights"].items():
        gap = (two["weights"][name].float() - value.float()).norm() / value.float().norm().clamp(min=1)
        assert gap < 0.02, f"{name}: {gap:.4f}"
