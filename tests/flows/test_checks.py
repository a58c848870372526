"""What a plan refuses, and what it says of what it does not refuse."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from artifacts.stage import Input
from errors import UserError
from flows.checks import check_length, check_settings, check_target
from kimi_adapters.layer_ids import default_layer_ids
from tasks.handles import Verifier
from tasks.settings import Settings
from tests.kimi_adapters.draft_fixtures import LAYER_IDS
from tests.kimi_adapters.published_fixtures import flat_values, write_draft
from tests.kimi_adapters.test_deepseek_config import PUBLISHED


def test_samples_longer_than_the_verifier_reads_are_refused() -> None:
    settings = Settings.model_validate({"corpus": {"max_length": 4096}})
    fitting: tuple[dict[str, Any] | None, ...] = (None, {}, {"max_length": 4096})
    for facts in fitting:
        check_length(settings, Verifier("v", facts, "", None, "chatml"))
    with pytest.raises(UserError, match=r"corpus\.max_length is 4096 and the verifier reads 4095 tokens"):
        check_length(settings, Verifier("v", {"max_length": 4095}, "", None, "chatml"))


def test_what_an_engine_leaves_open_and_what_it_alone_judges_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "p.jsonl").write_text('{"messages": [{"role": "user", "content": "Hi!"}]}')
    sections = {
        "verifier": {"embedded": "smollm2-135m-instruct"},
        "acceptance": {"prompts": str(tmp_path / "p.jsonl"), "engine": "endpoint"},
    }
    with caplog.at_level(logging.WARNING, "eyas"):
        check_settings(Settings.model_validate({**sections, "endpoint": {"url": "http://127.0.0.1:1/v1"}}))
    assert "endpoint.plain_url is empty" in caplog.text
    theirs = write_draft(tmp_path / "theirs", flat_values(architectures=["Other"]), {"x": torch.ones(1)})
    compared = Settings.model_validate({"acceptance": {"engine": "start", "compare": [str(theirs)]}})
    with caplog.at_level(logging.WARNING, "eyas"):
        check_target(compared, Verifier("v", None, "", None, "chatml"), LAYER_IDS)
    assert "of the architecture ['Other']" in caplog.text and "it is judged in the engine alone" in caplog.text


def test_a_shape_left_half_open_that_the_verifier_does_not_divide_is_refused(tmp_path: Path) -> None:
    """By plan and run alike, before anything costs: Kimi-K2.5 has 64 heads and a hidden size of 7,168."""
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))
    facts = {"family": "deepseek_v3", "vocab_size": 163840, "max_length": 262144}
    kimi = Verifier("k", facts, "", Input("", path=str(tmp_path)), "kimi")

    def check(**shape: Any) -> None:
        settings = Settings.model_validate({"store": {"path": str(tmp_path / "store")}, "training": shape})
        check_target(settings, kimi, default_layer_ids(61))

    check()
    check(num_kv_heads=8)
    check(num_heads=56, num_kv_heads=7)
    check(num_heads=60, layer="qwen3")
    with pytest.raises(UserError, match=r"64 heads over 7 key-value heads.*training\.num_kv_heads"):
        check(num_kv_heads=7)
    with pytest.raises(UserError, match=r"60 heads, which do not divide the verifier's hidden size 7168.*training\.num_heads"):
        check(num_heads=60)
