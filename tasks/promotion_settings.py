"""The settings of promotion. Data only; in the key of the decision and in no other."""

from typing import Literal

from pydantic import Field

from tasks.section import Section


class PromotionSettings(Section):
    """When a retrained draft takes the champion's place."""

    margin: float = Field(
        0.0, ge=0, description="The lower end of the interval of the gain in acceptance length must lie above this"
    )
    confidence: float = Field(0.95, gt=0, lt=1, description="Of that interval, by bootstrap over samples")
    max_slice_loss: float = Field(
        0.05, ge=0, description="Acceptance length that a slice (length, script, thinking, tools, source) may lose"
    )
    min_samples: int = Field(
        8, ge=2, description="Fewest held-out samples by which anything is judged; thinner slices are named"
    )
    ask: Literal["never", "without decoding", "always"] = Field(
        "without decoding", description="When a person approves a promotion; the default asks where only replay has judged"
    )
