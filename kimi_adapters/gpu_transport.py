"""Layers to one NVIDIA GPU through a ring, states off it beside the computing, for as many passes as a lease has."""

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from kimi_adapters.device_memory import HELD_BYTES
from kimi_adapters.layer_ring import LayerRing
from kimi_adapters.state_output import StateOutput
from kimi_adapters.transport import Loads, Sink
from kimi_adapters.weights import Checkpoint


class GpuTransport:
    """As transport.Transport; at most `held_bytes` of states wait on the device.

    `weights` and `states` tell how long it stood still for either.
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device, held_bytes: int = HELD_BYTES):
        self._device = device
        self.held_bytes = held_bytes
        self._ring = LayerRing(checkpoint, device)
        self._output = StateOutput(device, held_bytes)
        self.weights = self._ring.waiting
        self.states = self._output.waiting

    def embedded(self, ids: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
        """The table passes through the device."""
        with self.weights:
            table = self._ring.embed(dtype)
        return [F.embedding(one.to(self._device, torch.int64), table) for one in ids]

    def layers(self, family: Loads, resident: dict[int, Any] | None) -> Iterator[Any]:
        """As Transport.layers."""
        return self._ring.layers(family, resident)

    def emit(self, sink: Sink, shard: int, name: str, stream: Tensor, dtype: torch.dtype) -> None:
        """As Transport.emit, on the output's thread; a chunk's memory is used again once the sink returns."""
        self._output.emit(sink, shard, name, stream, dtype)

    def then(self, what: Callable[[], Any]) -> None:
        """As Transport.then."""
        self._output.then(what)

    def finish(self) -> None:
        """As Transport.finish."""
        self._output.finish()

    def read_clock(self) -> float:
        """As Transport.read_clock; it stands still while the reader waits for room on the device."""
        return self._ring.read_seconds()

    def waited(self) -> float:
        """As Transport.waited."""
        return self.weights.seconds()

    def close(self) -> None:
        """Ends the threads; states on their way go through first."""
        self._output.close()
        self._ring.close()
        torch.cuda.empty_cache()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
