"""Forked processes of a test, alone or as ranks joined by gloo over a file: what they import is there already."""

import multiprocessing
import os
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
import torch.distributed as dist

from kimi_adapters.process_group import Ranks

# Autograd counts devices at a process's first backward, and a call of flex attention before it adds one. After that no child
# could be forked, so the first backward comes here, before any test.
torch.ones((), requires_grad=True).backward()


def in_a_child(work: Callable[[], None]) -> int | None:
    """Does `work` in a process of its own; its exit code."""
    torch.set_num_threads(1)  # a forked child must not wait for threads that stayed behind
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join(60)
    return process.exitcode


def on_ranks(count: int, meeting: Path, work: Callable[[Ranks], None]) -> list[int | None]:
    """Does `work` on each of `count` ranks; their exit codes, 0 where it came to its end."""

    def child(rank: int) -> None:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        try:
            torch.set_num_threads(1)
            dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=count)
            work(Ranks("cpu"))
            dist.destroy_process_group()
        except BaseException:
            traceback.print_exc()
            os._exit(1)  # its neighbours must not wait for its goodbye

    torch.set_num_threads(1)  # a forked child must not wait for threads that stayed behind
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=child, args=(rank,)) for rank in range(count)]
    return ended(processes, 120)


def ended(processes: Sequence[BaseProcess], seconds: float) -> list[int | None]:
    """Starts them and waits so long for each; their exit codes, None of one that had not ended, which is killed."""
    for process in processes:
        process.start()
    for process in processes:
        process.join(seconds)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    return codes
