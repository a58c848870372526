"""Settings of when a run may work and what it may spend. They are in no key. Data only."""

from pydantic import Field

from tasks.section import Section


class BudgetSettings(Section):
    """What a run may spend; what would pass it is not begun. In Prefect's UI the run pauses and a person may approve."""

    gpu_hours: float | None = Field(
        None, gt=0, description="Hours of leased accelerators (extraction, training, acceptance), each counted for itself"
    )
    bytes: int | None = Field(None, gt=0, description="Bytes of hidden states that a run may add to the store")
