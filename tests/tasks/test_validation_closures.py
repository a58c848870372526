"""Which modules are in whose key: a plot does not check shards again, nor a check extract."""

from pathlib import Path

import pytest

from artifacts.code_digest import closure

ROOT = Path(__file__).parents[2]
MERGE = {"tasks.validation_merge", "tasks.sample_decisions", "tasks.validation_report", "tasks.validation_plots"}
CHECK = {"tasks.validation", "tasks.shard_check", "tasks.repetition", "kimi_adapters.head_scores"}
OWN = {"kimi_adapters.layer_stream", "kimi_adapters.transport"}
ENGINE = {"tasks.endpoint", "kimi_adapters.engine_states", "kimi_adapters.layer_proof"}
KEYS = {
    "hidden_states": (
        OWN | {"tasks.state_stats", "kimi_adapters.reading"},
        ENGINE | MERGE | CHECK | {"tasks.checks", "tasks.passes"},
    ),
    "engine_states": ({"kimi_adapters.engine_states", "kimi_adapters.layer_proof", "tasks.state_stats"}, OWN | MERGE | CHECK),
    "layer_reference": (OWN | {"kimi_adapters.own_streams"}, MERGE | CHECK | {"kimi_adapters.engine_states"}),
    "validation": (CHECK | {"tasks.checks", "tasks.state_stats"}, MERGE | {"kimi_adapters.layer_stream"}),
    "validation_merge": (MERGE | {"tasks.checks"}, CHECK | {"tasks.state_stats"}),
    "training": ({"tasks.shard_files"}, MERGE | CHECK | {"tasks.checks", "tasks.state_stats"}),
    "acceptance": ({"tasks.shard_files"}, MERGE | CHECK | {"tasks.checks", "tasks.state_stats"}),
    "vocabulary": (set(), MERGE | CHECK | {"tasks.checks", "tasks.state_stats"}),
}


@pytest.mark.parametrize("stage", KEYS)
def test_what_a_stage_reaches(stage: str) -> None:
    modules = set(closure(ROOT, f"tasks.{stage}"))
    reached, foreign = KEYS[stage]
    assert reached <= modules and not foreign & modules
