"""Settings of when a run may work and what it may spend. They are in no key. Data only."""

import re
from datetime import time
from typing import Any, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, field_validator, model_validator

from tasks.section import Section

_CLOCK = re.compile(r"([01]\d|2[0-3]):[0-5]\d(:[0-5]\d)?$")


class BudgetSettings(Section):
    """What a run may spend; what would pass it is not begun. In Prefect's UI the run pauses and a person may approve."""

    gpu_hours: float | None = Field(
        None,
        gt=0,
        description="Hours of leased accelerators (synthesis, extraction, training, acceptance), each counted for itself",
    )
    bytes: int | None = Field(None, gt=0, description="Bytes of hidden states that a run may add to the store")


class WindowSettings(Section):
    """When a run may hold devices, and what is done before and after it does. A run that only hits needs no window."""

    start: str | None = Field(None, description="Time of day at which devices may be taken, as 22:00; empty: at any time")
    end: str | None = Field(None, description="Time of day at which they are free again; before the start: on the next day")
    timezone: str = Field("UTC", description="Whose times these are, as Europe/Berlin")
    wait: bool = Field(False, description="Wait for the window, and for the next one where it was too short; else the run ends")
    grace: int = Field(60, gt=0, description="Seconds before the end in which training saves a checkpoint and nothing starts")
    devices: list[int] | None = Field(None, description="GPUs that may be leased; empty: as running.devices says")
    before: str | None = Field(None, description="Command before devices are taken, as one that stops serving on them")
    after: str | None = Field(None, description="Command when they are free again, whatever happened, a killed run included")

    @field_validator("start", "end", mode="before")
    @classmethod
    def _clock(cls, value: Any) -> Any:
        """A time of day; YAML reads a bare 22:00 as 1320, in base 60."""
        if isinstance(value, int) and not isinstance(value, bool):
            minutes, seconds = (value, 0) if value < 24 * 60 else divmod(value, 60)
            value = f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02}"
        if value is not None and not (isinstance(value, str) and _CLOCK.match(value)):
            raise ValueError("give a time of day, as 22:00")
        return value

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if (self.start is None) != (self.end is None):
            raise ValueError("window.start and window.end belong together: give both, or neither")
        if self.start is not None and self.clock("start") == self.clock("end"):
            raise ValueError("window.start and window.end are the same time: give two, or neither")
        try:
            ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError):
            raise ValueError(f"window.timezone {self.timezone!r} is no time zone: give one as Europe/Berlin") from None
        return self

    def clock(self, which: str) -> time:
        """``start`` or ``end`` as a time."""
        return time.fromisoformat(getattr(self, which))
