"""The settings that ship are settings, and the UI's defaults are the demo's."""

import math
from pathlib import Path

import pytest
import torch
import yaml
from speculators.models.eagle3 import Eagle3DraftModel

from benchmarks.kimi_widths import config
from kimi_adapters.device_memory import need
from kimi_adapters.device_paths import sizes
from kimi_adapters.draft import EMBEDDINGS, HEAD, VERIFIER_ONLY, draft_config
from kimi_adapters.gpu_transport import HELD_BYTES
from kimi_adapters.layer_ids import default_layer_ids
from kimi_adapters.pass_memory import layer_bytes
from kimi_adapters.recipe import Recipe
from running.pace import FITTING
from tasks.settings import Settings

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("path", sorted((ROOT / "deployments").glob("*.yaml")), ids=lambda path: path.name)
def test_each_file_of_settings_is_valid(path: Path) -> None:
    Settings.model_validate(yaml.safe_load(path.read_text()))


def test_the_first_run_from_the_ui_hits_what_the_demo_made() -> None:
    deployments = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    settings = {one["name"]: Settings.model_validate(one["parameters"]["settings"]) for one in deployments}
    demo = Settings.model_validate(yaml.safe_load((ROOT / "deployments" / "demo.yaml").read_text()))
    assert settings["train-draft"] == demo
    same = ("verifier", "synthesis", "data")
    assert [getattr(settings["synthesize"], name) for name in same] == [getattr(demo, name) for name in same]


def test_retraining_reads_where_synthesis_lands() -> None:
    deployments = {one["name"]: one["parameters"] for one in yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]}
    for name in ("retrain-weekly", "retrain-on-data"):
        assert deployments[name]["settings"]["data"]["conversations"] == [deployments["synthesize"]["into"]]


@pytest.mark.parametrize(("gigabytes", "most"), [(96, 6), (141, 28)])
def test_kimi_on_eight_gpus_fits_as_its_comments_say(gigabytes: int, most: int) -> None:
    """The memory of a pass by kimi_adapters/device_memory.py; what was said there of one shard more or less holds."""
    text = (ROOT / "deployments" / "kimi_k25_8gpu.yaml").read_text()
    settings = Settings.model_validate(yaml.safe_load(text))
    lines = text.splitlines()
    counts = next(line for line in lines if "shards of 131,072 tokens a pass" in line).split("pass")[1].split()
    needed = next(line for line in lines if "GB needed" in line).split("needed")[1].split()
    layers = 2 * layer_bytes(config()).largest

    def total(count: int) -> float:
        shards = [settings.corpus.shard_tokens] * count
        longest = settings.corpus.max_length
        return need(config(), sizes(torch.device("cuda")), shards, longest, layers, HELD_BYTES).total / 1e9

    assert {int(count): float(said) for count, said in zip(counts, needed, strict=True)} == {
        int(count): round(total(int(count)), 1) for count in counts
    }
    assert settings.running.shards_per_pass
    assert total(settings.running.shards_per_pass) <= total(most) <= gigabytes - 3 < total(most + 1)
    assert f"{most} on {gigabytes} GB" in next(line for line in lines if "are the most that leave 3 GB" in line)


def test_kimi_on_eight_gpus_says_when_the_weights_stay_in_memory() -> None:
    """As running/pace.py decides it, of what its children leave."""
    text = (ROOT / "deployments" / "kimi_k25_8gpu.yaml").read_text()
    layers = layer_bytes(config()).total
    available, children = layers / FITTING, 8 * 4.1e9
    host = math.ceil((available + children) / 1e10) * 10
    assert f"host memory of {host} GB OR MORE" in text and f"host memory of {host} GB or more" in text
    assert f"{layers / 1e9:.1f} GB of layers" in text
    assert f"at most {FITTING} of the available memory (running/pace.py), {available / 1e9:.0f} GB" in text
    assert f"8 children of 4.1 GB = {children / 1e9:.0f} GB" in text


def test_kimi_on_eight_gpus_is_drafted_as_published() -> None:
    """kimi_k25.md, rows 3 to 5 and 18: 64 heads of 128, intermediate 12,288, plain positions, flags that SGLang honours."""
    settings = Settings.model_validate(yaml.safe_load((ROOT / "deployments" / "kimi_k25_8gpu.yaml").read_text()))
    verifier, layers = config(), settings.hidden_states.layer_ids
    assert layers == default_layer_ids(61) and (len(layers) + 1) * verifier.hidden_size * 2 == 57344
    assert settings.store.max_bytes is not None and 100e6 * 57344 < settings.store.max_bytes < 105e6 * 57344
    made = draft_config(
        Recipe.from_dict(settings.training.recipe()),
        verifier,
        layers,
        settings.vocabulary.size,
        "sdpa",
    )
    with torch.device("meta"):
        sizes = {name: value.numel() for name, value in Eagle3DraftModel(made).named_parameters()}
    kept = (EMBEDDINGS, HEAD, *VERIFIER_ONLY)
    trained, frozen = (sum(size for name, size in sizes.items() if (name in kept) is one) for one in (False, True))
    text = (ROOT / "deployments" / "kimi_k25_8gpu.yaml").read_text()
    assert f"= {trained / 1e6:.0f} million: {trained * 16 / 1e9:.1f} GB with AdamW" in text
    assert f"trained against): {frozen * 4 / 1e9:.1f} GB." in text
    layer = made.transformer_layer_config
    assert (layer.num_attention_heads, layer.num_key_value_heads, layer.head_dim) == (64, 64, 128)
    assert (layer.intermediate_size, layer.max_position_embeddings) == (12288, 262144)
    assert layer.rope_parameters["rope_type"] == "default" and layer.rope_parameters["rope_theta"] == 50000
    assert not (made.norm_before_residual or made.norm_before_fc or made.norm_output)
