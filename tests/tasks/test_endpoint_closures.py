"""How an endpoint is asked is in the keys of those that ask one, and in no other."""

from pathlib import Path

import pytest

from artifacts.code_digest import closure

RULES = "kimi_adapters.engine_rules"  # what engines make of an export; asks none
ROOT = Path(__file__).parents[2]
OTHERS = ("synthesis", "corpus", "hidden_states", "validation", "vocabulary", "training", "acceptance", "export")


@pytest.mark.parametrize("stage", OTHERS)
def test_other_stages_do_not_reach_it(stage: str) -> None:
    asking = [name for name in closure(ROOT, f"tasks.{stage}") if "engine" in name or "endpoint" in name]
    assert set(asking) <= {RULES}


def test_synthesis_by_an_endpoint_reaches_no_model() -> None:
    modules = set(closure(ROOT, "tasks.endpoint_synthesis"))
    assert {"kimi_adapters.engine_client", "tasks.chunk_answers"} <= modules
    assert not modules & {"kimi_adapters.verifier", "kimi_adapters.generation", "kimi_adapters.engine_server"}
