"""The clock and the power of a GPU while something runs on it: a product that starts cool is not what an hour of them is."""

import statistics
import subprocess
from types import TracebackType
from typing import Self

import torch


class Clocks:
    """Between entering and leaving, what nvidia-smi reads four times a second; nothing without a GPU."""

    def __enter__(self) -> Self:
        self._asked = None
        if torch.cuda.is_available():
            card = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
            command = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits", "-lms", "250"]
            self._asked = subprocess.Popen([*command, f"--id=GPU-{card}"], stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        text = ""
        if self._asked:
            self._asked.terminate()
            text, _ = self._asked.communicate()
        rows = [tuple(map(float, line.split(","))) for line in text.splitlines() if line.count(",") == 1]
        rows = [row for row in rows if row[1] > max(watts for _, watts in rows) / 2]  # at work, not while a model is built
        self.megahertz = statistics.median(row[0] for row in rows) if rows else 0.0
        self.watts = statistics.median(row[1] for row in rows) if rows else 0.0
