"""The ranks of a training, one process a device, joined by torch.distributed. A training of one process is rank 0 of 1.

Gradients go through the device's own backend. Numbers of the host, and waiting, go through gloo with a patience of days: no
timeout tells a rank that writes a checkpoint from a dead one. Who watches the processes (torchrun) does, and ends the rest.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")
PATIENCE = timedelta(days=7)
DEVICE_PATIENCE = timedelta(minutes=30)  # the first step compiles, and ranks may be minutes apart in it


class Ranks:
    """This process among those of the group that is joined, if one is: `number` of `count`, on its own `device`."""

    def __init__(self, device: torch.device | str):
        self.device = torch.device(device)
        self.number, self.count = 0, 1
        if dist.is_initialized():
            self.number, self.count = dist.get_rank(), dist.get_world_size()
            group = dist.new_group(backend="gloo", timeout=PATIENCE)
            assert isinstance(group, dist.ProcessGroup), "every rank is a member"
            self._host = group

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes and tells."""
        return self.number == 0

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """Every `count`-th item; the shares of all ranks are all items."""
        return items[self.number :: self.count]

    def sums(self, values: Sequence[float]) -> list[float]:
        """Each value summed over the ranks, in their order and in float64: the same on all of them."""
        return self._gathered(values).cumsum(0)[-1].tolist()

    def largest(self, value: float) -> float:
        """The largest of what the ranks have: the same on all of them."""
        return float(self._gathered([value]).max())

    def _gathered(self, values: Sequence[float]) -> Tensor:
        """float64 [count, values]."""
        mine = torch.tensor(values, dtype=torch.float64)
        if self.count == 1:
            return mine[None]
        all_values = [torch.empty_like(mine) for _ in range(self.count)]
        dist.all_gather(all_values, mine, group=self._host)
        return torch.stack(all_values)

    def firsts(self, value: T) -> T:
        """What the first rank has."""
        if self.count == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._host)
        return box[0]

    def wait(self) -> None:
        """Until every rank is here, however long that takes."""
        if self.count > 1:
            dist.barrier(group=self._host)


@contextmanager
def joined(device: torch.device | str) -> Iterator[Ranks]:
    """The ranks that torchrun's environment names, each on the GPU of its local rank where `device` is CUDA; else one."""
    device = torch.device(device)
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Ranks(device)
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", timeout=DEVICE_PATIENCE)
    else:
        dist.init_process_group("gloo", timeout=PATIENCE)
    yield Ranks(device)
    dist.destroy_process_group()  # after an error the process ends at once: its neighbours must not wait for its goodbye
