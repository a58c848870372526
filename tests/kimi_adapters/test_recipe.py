import pytest

from errors import UserError
from kimi_adapters.recipe import Recipe


def test_from_dict_takes_what_yaml_gives() -> None:
    recipe = Recipe.from_dict({"lr": 1, "epochs": 2, "num_heads": None, "norm_output": True, "scheduler": "linear"})
    assert recipe == Recipe(lr=1.0, epochs=2, norm_output=True, scheduler="linear")
    assert isinstance(recipe.lr, float)


def test_warm_up_follows_the_scheduler_where_it_is_not_given() -> None:
    assert Recipe().warmup == 0.02 and Recipe(scheduler="none").warmup == 0.0
    assert Recipe.from_dict({"warmup_ratio": 1}).warmup == 1.0 and Recipe(warmup_ratio=0.0).warmup == 0.0


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"learning_rate": 1e-3}, "learning_rate"),
        ({"epochs": 2.5}, "training.epochs"),
        ({"epochs": True}, "training.epochs"),
        ({"lr": "1e-3"}, "training.lr"),
        ({"lr": 0}, "training.lr"),
        ({"lr": float("nan")}, "training.lr"),
        ({"norm_output": 1}, "training.norm_output"),
        ({"warmup_ratio": 1.5}, "training.warmup_ratio"),
        ({"scheduler": "step"}, "cosine, linear, none"),
        ({"loss": "mse"}, "kl_div"),
        ({"layer": "mla"}, "llama, qwen3"),
        ({"noise": -1.0}, "training.noise"),
        ({"scheduler": "none", "warmup_ratio": 0.1}, "training.warmup_ratio"),
        ({"warmup_ratio": "0.1"}, "training.warmup_ratio"),
        ({"replay_every_steps": -1}, "training.replay_every_steps"),
        ({"replay_every_steps": 0, "patience": 2}, "training.patience"),
        ({"patience": 0}, "training.patience"),
        ({"norm_before_fc": True, "fc_norm": True}, "exclude each other"),
        ({"pack_tokens": 6}, "training.pack_tokens"),
        ({"num_heads": 6, "num_kv_heads": 4}, "training.num_heads"),
        ({"head_dim": 7}, "training.head_dim"),
    ],
)
def test_mistakes_are_told_by_name(values: dict[str, object], named: str) -> None:
    with pytest.raises(UserError, match=named):
        Recipe.from_dict(values)
