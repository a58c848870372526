"""The draft on several ranks: replicated (DDP) or sharded (FSDP2). Gradients are summed over ranks, not averaged.

Each pack's loss is weighed by its share of the step's supervised tokens, whichever rank computes it, so that the sum over
ranks is the step's gradient.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from kimi_adapters.process_group import Ranks

SHARDINGS = ("none", "fsdp")


def over_ranks(module: torch.nn.Module, ranks: Ranks, sharding: str) -> torch.nn.Module:
    """The module as all ranks share it; alone, itself. What is not trained stays whole on every rank."""
    if ranks.count == 1:
        return module
    if sharding == "none":
        replica = DistributedDataParallel(module, broadcast_buffers=False, gradient_as_bucket_view=True)
        replica.register_comm_hook(None, _summed)
        return replica
    frozen = {parameter for parameter in module.parameters() if not parameter.requires_grad}
    mesh = init_device_mesh(ranks.device.type, (ranks.count,))
    # One unit: a draft is one layer or two. What the forward gathered serves the backward, too.
    sharded = fully_shard(module, mesh=mesh, reshard_after_forward=False, ignored_params=frozen)
    sharded.set_gradient_divide_factor(1.0)
    sharded.set_force_sum_reduction_for_comms(True)
    return module


@contextmanager
def gradients(module: torch.nn.Module, last: bool) -> Iterator[None]:
    """Around forward and backward of a pack: gradients add up here, and after the `last` of a step over the ranks."""
    context: AbstractContextManager[None] = nullcontext()
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(last)
    elif isinstance(module, DistributedDataParallel) and not last:
        context = module.no_sync()
    with context:
        yield


def whole(tensor: Tensor) -> Tensor:
    """A tensor of which this rank may hold a part; all ranks must ask for it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def whole_tensors(tensors: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """Tensors whole on the first rank (those that are sharded come to its CPU, one at a time), none on the others."""
    kept: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        value = whole(tensor.detach())
        if ranks.first:
            kept[name] = value.cpu() if isinstance(tensor, DTensor) else value
    return kept


def part_like(tensor: Tensor, like: Tensor) -> Tensor:
    """This rank's part of a whole tensor, as it holds `like`."""
    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def _summed(_: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(lambda future: future.value()[0])
