"""How layers come to a device and states leave it: plainly, or through pinned memory beside the computing."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from kimi_adapters.lanes import pieces
from kimi_adapters.weights import Checkpoint

# Rows that a sink gets at once: 6 MB of a K2.5 state in bf16.
TOKEN_CHUNK = 512

Sink = Callable[[int, str, Tensor], None]


class Loads(Protocol):
    """What a transport asks of a family."""

    def load(self, checkpoint: Checkpoint, index: int) -> Any:
        """Layer `index` as it is stored, on the device; called by another thread while a layer computes."""
        ...


class Transport(Protocol):
    """Serves passes over one checkpoint, one after another. `held_bytes`: of states that may wait on the device."""

    held_bytes: int

    def embedded(self, ids: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
        """The embeddings [T, hidden] of each shard's tokens, on the device."""
        ...

    def layers(self, family: Loads, resident: dict[int, Any] | None) -> Iterator[Any]:
        """The layers in order; one may be used until the next is asked for. `resident` layers are taken from there."""
        ...

    def emit(self, sink: Sink, shard: int, name: str, stream: Tensor, dtype: torch.dtype) -> None:
        """Hands the states [T, hidden] as they are now to the sink, in chunks, in order."""
        ...

    def then(self, what: Callable[[], Any]) -> None:
        """Calls `what` once all states emitted so far have been through their sinks, on the sinks' thread."""
        ...

    def finish(self) -> None:
        """Waits until all states are through their sinks."""
        ...

    def read_clock(self) -> float:
        """A clock in seconds for the reading of a layer; only differences count."""
        ...

    def waited(self) -> float:
        """Seconds so far in which the device stood still for weights; may wait until it has begun the last layer."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None: ...


def transport_for(checkpoint: Checkpoint, device: torch.device) -> Transport:
    """The transport of a kind of device."""
    if device.type == "cuda":
        from kimi_adapters.gpu_transport import GpuTransport

        return GpuTransport(checkpoint, device)
    return PlainTransport(checkpoint, device)


class PlainTransport:
    """A thread reads the next layer while one computes; states go to the sink at once."""

    held_bytes = 0

    def __init__(self, checkpoint: Checkpoint, device: torch.device):
        self._checkpoint = checkpoint
        self._device = device
        self._waited = 0.0

    def embedded(self, ids: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
        """The table is read on the CPU and let go."""
        table = self._checkpoint.embed()
        return [F.embedding(one.long(), table).to(self._device, dtype) for one in ids]

    def layers(self, family: Loads, resident: dict[int, Any] | None) -> Iterator[Any]:
        """As Transport.layers."""

        def load(index: int) -> Any:
            if resident is not None and index in resident:
                return resident[index]
            layer = family.load(self._checkpoint, index)
            if resident is not None:
                resident[index] = layer
            return layer

        count = self._checkpoint.config.num_layers
        with ThreadPoolExecutor(max_workers=1) as reader:
            arriving = reader.submit(load, 0)
            for index in range(count):
                began = time.monotonic()
                layer = arriving.result()
                self._waited += time.monotonic() - began
                if index + 1 < count:
                    arriving = reader.submit(load, index + 1)
                yield layer
                del layer

    def emit(self, sink: Sink, shard: int, name: str, stream: Tensor, dtype: torch.dtype) -> None:
        """As Transport.emit; chunks are the sink's to keep."""
        for chunk in pieces(0, len(stream), TOKEN_CHUNK):
            sink(shard, name, stream[chunk].to("cpu", dtype, copy=True))

    def then(self, what: Callable[[], Any]) -> None:
        """At once."""
        what()

    def finish(self) -> None:
        """Nothing is on its way."""

    def read_clock(self) -> float:
        """As Transport.read_clock."""
        return time.monotonic()

    def waited(self) -> float:
        """As Transport.waited."""
        return self._waited

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        pass
