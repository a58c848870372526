import math
from typing import Any

import pytest

from errors import UserError
from kimi_adapters.engine_rules import ENGINES, check_engine
from tasks.settings import TrainingSettings

PLAIN: dict[str, Any] = {
    "recipe": TrainingSettings().model_dump(),
    "layer_ids": [2, 30, 58],
    "family": "deepseek_v3",
    "dtype": "bfloat16",
    "rope": {"rope_type": "default", "rope_theta": 5e4},
}
YARN = {"rope_type": "yarn", "rope_theta": 5e4, "factor": 64.0, "original_max_position_embeddings": 4096, "mscale": 1.0}


def recipe(**changed: Any) -> dict[str, Any]:
    return {"recipe": {**PLAIN["recipe"], **changed}}


# The table of the module: what changes, and whether vLLM and SGLang would serve it as trained; else a word of the reason.
CASES: dict[str, tuple[dict[str, Any], str | None, str | None]] = {
    "nothing": ({}, None, None),
    "norm_before_fc": (recipe(norm_before_fc=True), None, None),
    "fc_norm": (recipe(fc_norm=True), None, None),
    "norm_output": (recipe(norm_output=True), None, None),
    "norm_before_residual": (recipe(norm_before_residual=True), None, "norm_before_residual is true"),
    "layers": (recipe(num_layers=2), None, None),
    "heads": (recipe(num_heads=64, num_kv_heads=8, head_dim=112), None, None),
    "qwen3": (recipe(layer="qwen3"), None, "q_norm"),
    "embeddings": (recipe(train_embeddings=True), None, "replaces"),
    "a head": (recipe(train_lm_head=True), None, None),
    "yarn": ({"rope": YARN}, None, None),
    "yarn of 1": ({"rope": {**YARN, "attention_factor": 1.0}}, None, None),
    "yarn's own": ({"rope": {**YARN, "attention_factor": 0.1 * math.log(64.0) + 1.0}}, None, None),
    "yarn of another": ({"rope": {**YARN, "attention_factor": 1.1}}, None, "attention_factor 1.1"),
    "llama3": ({"rope": {"rope_type": "llama3", "factor": 8.0}}, None, None),
    "yarn, another spelling": ({"rope": {**YARN, "attn_factor": 2.0}}, "attn_factor", "attn_factor"),
    "another rope": ({"rope": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic", "dynamic"),
    "float32": ({"dtype": "float32"}, None, "float16"),
    "id 0": ({"layer_ids": [0, 2], "family": "llama"}, None, "no name"),
    "one id": ({"layer_ids": [2]}, None, "skips"),
    "DeepSeek, from 3": ({"layer_ids": [3, 31, 59]}, None, "begins with 3"),
    "Llama, from 3": ({"layer_ids": [3, 31, 59], "family": "llama"}, None, None),
    "not known yet": ({"layer_ids": [], "family": None}, None, None),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("engine", ENGINES)
def test_what_an_engine_would_not_serve_as_trained_is_refused_with_the_reason(engine: str, case: str) -> None:
    changed, *reasons = CASES[case]
    reason = reasons[ENGINES.index(engine)]
    if reason is None:
        check_engine(engine, **{**PLAIN, **changed})
        return
    with pytest.raises(UserError, match=f"has {engine}, and .*{reason}.*leave {engine} out"):
        check_engine(engine, **{**PLAIN, **changed})
