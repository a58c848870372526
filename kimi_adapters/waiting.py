"""How long a GPU stood still: time on its own clock between two points of a stream."""

from types import TracebackType

import torch


class Waiting:
    """A context around what the current stream (or the thread that feeds it) may wait for; `seconds` adds them up.

    Time counts from when the device had finished what was launched before, so a wait that overlaps computing is none.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._pairs: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._sum = 0.0

    def _record(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def __enter__(self) -> None:
        self._start = self._record()

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._pairs.append((self._start, self._record()))

    def seconds(self) -> float:
        """The sum so far; waits for the device."""
        for start, end in self._pairs:
            end.synchronize()
            self._sum += start.elapsed_time(end) / 1e3
        self._pairs.clear()
        return self._sum
