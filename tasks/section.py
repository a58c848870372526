"""What every group of settings is. Data only."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A group of settings that rejects unknown names."""

    model_config = ConfigDict(extra="forbid", frozen=True)
