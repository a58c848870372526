"""A recipe that cannot be trained is refused where the plan is made, not in a child after the extraction."""

import pytest

from errors import UserError
from tasks.settings import Settings, TrainingSettings
from tasks.training import check


def test_a_wrong_recipe_is_refused() -> None:
    check(Settings())
    with pytest.raises(UserError, match="num_heads is 0"):
        check(Settings(training=TrainingSettings(num_heads=0)))


def test_packs_of_broken_blocks_are_refused_on_a_gpu_alone() -> None:
    settings = Settings(training=TrainingSettings(pack_tokens=200))
    check(settings)
    check(Settings(), on_gpu=True)
    with pytest.raises(UserError, match="multiple of 128"):
        check(settings, on_gpu=True)
