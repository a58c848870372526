"""What every section of the settings is."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A group of settings that rejects unknown names, and quotes no value in its errors: a key may have been put there."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
