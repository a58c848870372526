"""What a form or a settings file may not say at once: refused before anything is planned, in one sentence."""

from pathlib import Path

import pytest
import yaml

from errors import UserError
from kimi_adapters.recipe import Recipe
from running.settings_file import load_settings
from tasks.settings import Settings, TrainingSettings


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"training": {"scheduler": "none", "warmup_ratio": 0.1}}, "training.warmup_ratio"),
        ({"training": {"norm_before_fc": True, "fc_norm": True}}, "training.norm_before_fc"),
        ({"training": {"pack_tokens": 14, "ttt_steps": 7}}, "training.pack_tokens"),
        ({"training": {"replay_every_steps": 0, "patience": 1}}, "training.patience"),
        ({"training": {"patience": 3}}, "training.patience"),
        ({"training": {"num_heads": 6, "num_kv_heads": 4}}, "training.num_kv_heads"),
        ({"training": {"head_dim": 65}}, "training.head_dim"),
        ({"acceptance": {"k": 4}, "training": {"ttt_steps": 3}}, "acceptance.k"),
        ({"training": {"max_position_embeddings": 1024}, "corpus": {"max_length": 2048}}, "training.max_position_embeddings"),
        ({"corpus": {"held_out": 0}, "training": {"patience": 2}}, "corpus.held_out"),
        ({"running": {"training_devices": 4}, "training": {"packs_per_step": 2}}, "running.training_devices"),
        ({"running": {"training_sharding": "fsdp"}}, "running.training_sharding"),
        ({"training": {"muon_lr": 0.1}}, "training.muon_lr"),
        ({"vocabulary": {"mapping": "maps"}, "training": {"parent": "champion"}}, "vocabulary.mapping"),
        ({"corpus": {"held_out": 0}, "training": {"replay_every_steps": 10}}, "corpus.held_out"),
    ],
)
def test_a_contradiction_is_one_sentence_that_names_the_setting(tmp_path: Path, values: dict[str, object], named: str) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(yaml.safe_dump(values))
    with pytest.raises(UserError, match=named) as refused:
        load_settings(path, [])
    assert len(str(refused.value).splitlines()) == 1 and "Value error" not in str(refused.value)


def test_what_agrees_passes_and_is_a_recipe() -> None:
    assert Settings.model_validate({"corpus": {"held_out": 0}, "training": {"scheduler": "none"}}).training.warmup_ratio is None
    assert Settings.model_validate({"acceptance": {"k": 3}}) == Settings()
    for more in ({"patience": 2}, {"patience": 3, "replay_every_steps": 9}, {"patience": 3, "continue_from": "abcdef01"}):
        assert TrainingSettings.model_validate(more).patience == more["patience"]
    assert Recipe.from_dict(TrainingSettings().recipe()) == Recipe()
