"""Layers through a device ring of two: one computes while the next is read and copied.

Memory on the device: two layers as they are stored (2 · 9.7 GB of K2.5), or all that a LayerCache keeps.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kimi_adapters.pinned_reader import PinnedCheckpoint, PinnedReader
from kimi_adapters.transport import Loads
from kimi_adapters.waiting import Waiting
from kimi_adapters.weights import Checkpoint

DEPTH = 2
_Loaded = tuple[Any, torch.cuda.Event | None]  # a layer, and the event after its last copy


@dataclass
class _Slot:
    """A place of the ring. `layer` keeps the memory of what the device may still compute with; `room` is for reuse."""

    layer: Any = None
    used: torch.cuda.Event | None = None
    room: dict[tuple[str, int], Tensor] = field(default_factory=dict)


class LayerRing:
    """A checkpoint's layers on one GPU, as a family loads them; it may serve many passes, one after another.

    `waiting` adds up how long the device stood still for weights.
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device):
        self._reader = PinnedReader(device)
        self._checkpoint = PinnedCheckpoint(checkpoint, self._reader)
        self._device = device
        self._slots = [_Slot() for _ in range(DEPTH)]
        self._loader = ThreadPoolExecutor(max_workers=1)
        self.waiting = Waiting(device)

    def read_seconds(self) -> float:
        """Seconds so far that went into reading files, without those in which all buffers waited for the device."""
        return self._reader.busy.seconds

    def embed(self, dtype: torch.dtype) -> Tensor:
        """The embedding table on the device, for the current stream."""
        with torch.cuda.stream(self._reader.stream):
            table = self._checkpoint.embed(dtype, self._device)
        self._reader.stream.synchronize()
        table.record_stream(torch.cuda.current_stream(self._device))
        return table

    def layers(self, family: Loads, resident: dict[int, Any] | None) -> Iterator[Any]:
        """The layers in order, each for the current stream until the next is asked for; the first is read at once.

        Layers found in `resident` are not read, and layers read are left there.
        """
        return self._in_turn(family, resident, self._loader.submit(self._load, family, 0, resident))

    def _in_turn(self, family: Loads, resident: dict[int, Any] | None, arriving: Future[_Loaded]) -> Iterator[Any]:
        count = self._checkpoint.config.num_layers
        compute = torch.cuda.current_stream(self._device)
        for index in range(count):
            with self.waiting:
                layer, copied = arriving.result()
                if copied:
                    compute.wait_event(copied)
            if index + 1 < count:
                arriving = self._loader.submit(self._load, family, index + 1, resident)
            yield layer
            del layer
            slot = self._slots[index % DEPTH]
            slot.used = torch.cuda.Event()
            slot.used.record(compute)

    def _load(self, family: Loads, index: int, resident: dict[int, Any] | None) -> _Loaded:
        if resident is not None and index in resident:
            return resident[index], None
        slot, stream = self._slots[index % DEPTH], self._reader.stream
        with torch.no_grad(), torch.cuda.device(self._device), torch.cuda.stream(stream):
            if slot.used:
                stream.wait_event(slot.used)
            slot.layer = None
            self._checkpoint.start_layer(slot.room if resident is None else None)
            layer = family.load(self._checkpoint, index)
            copied = torch.cuda.Event()
            copied.record(stream)
        slot.layer = layer
        if resident is not None:
            resident[index] = layer
        return layer, copied

    def close(self) -> None:
        """Ends the threads."""
        self._loader.shutdown()
        self._reader.close()
