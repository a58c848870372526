"""A recipe that cannot be trained is refused where the plan is made, not in a child after the extraction."""

from typing import Any

import pytest

from errors import UserError
from tasks.settings import Settings, TrainingSettings
from tasks.training import check


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"norm_before_fc": True, "fc_norm": True}, "exclude each other"),
        ({"num_heads": 6, "num_kv_heads": 4}, "num_heads is 6"),
        ({"num_heads": 0}, "num_heads is 0"),
        ({"pack_tokens": 10, "ttt_steps": 5}, "too short"),
        ({"max_position_embeddings": 2047}, "leave it empty for the verifier's"),
    ],
)
def test_a_wrong_recipe_is_refused(wrong: dict[str, Any], named: str) -> None:
    check(Settings())
    with pytest.raises(UserError, match=named):
        check(Settings(training=TrainingSettings(**wrong)))


def test_packs_of_broken_blocks_are_refused_on_a_gpu_alone() -> None:
    settings = Settings(training=TrainingSettings(pack_tokens=200))
    check(settings)
    check(Settings(), on_gpu=True)
    with pytest.raises(UserError, match="multiple of 128"):
        check(settings, on_gpu=True)
