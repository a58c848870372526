"""An endpoint in real runs: its answers become conversations, and its judgement stands in the report."""

import json
import sys
from pathlib import Path

import torch

from tasks.formats import CONVERSATIONS
from tests.engine_endpoint import MODEL, Endpoint, Engine, serving
from tests.kimi_adapters.published_fixtures import flat_values, write_draft
from tests.projects import ROOT, Project, ran
from tests.prophet import Prophet

SECRET = "sk-Quetzal-7"


def holding(project: Project, text: str) -> list[Path]:
    """The project's files with a text in them."""
    return [path for path in project.folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def test_answers_come_from_the_endpoint_and_are_hit_whatever_its_address(fresh: Project, cut_verifier: Path) -> None:
    """In a child that may open what it declares. A gate stops the run when the corpus is there: the rest is other tests'."""
    chosen = ["data.prompts=[prompts.jsonl]", "synthesis.source=endpoint", "synthesis.prompts_per_task=1"]
    chosen += [f"endpoint.model={MODEL}", "synthesis.max_new_tokens=6"]
    arguments = [word for one in chosen for word in ("--set", one)]
    engine = Engine(cut_verifier)
    fresh.environment["ENDPOINT_KEY"] = SECRET
    with serving(Endpoint(engine, key=SECRET)) as endpoint:
        at = ["--set", f"endpoint.url={endpoint.url}", "--set", "endpoint.api_key_env=ENDPOINT_KEY"]
        at += ["--set", "gates.max_rejected=0"]
        done = fresh.eyas("run", str(fresh.settings), *arguments, *at)
    assert done.returncode == 2 and "gates.max_rejected" in done.stderr, done.stderr[-3000:]
    assert len(endpoint.asked) == 2 and len(fresh.records("endpoint_synthesis")) == 2
    blob = fresh.blob_of("endpoint_synthesis", "conversations", "chunk 2/2")
    row = json.loads((blob / CONVERSATIONS).read_text())
    assert row["answer_ids"] == engine.answer(row["prompt_ids"], 6, 0.0, 0)[0]
    assert not holding(fresh, SECRET) and SECRET not in done.stdout + done.stderr
    del fresh.environment["ENDPOINT_KEY"]
    nodes = fresh.nodes("plan", *arguments, "--set", "endpoint.url=http://127.0.0.1:1/v1", "--set", "endpoint.concurrency=3")
    assert [node["status"] for node in nodes if node["stage"] == "endpoint_synthesis"] == ["hit", "hit"]


def test_what_an_engine_accepts_is_in_the_report(project: Project, cut_verifier: Path) -> None:
    """Everything else is there already; the engine's draft is not ours, and the gate is as wide as that. Both of its addresses
    want the key."""
    engine = Engine(cut_verifier)
    rows = [json.loads(line) for line in (project.folder / "prompts.jsonl").read_text().splitlines()]
    drafted = Endpoint(engine, draft=Prophet.of(engine, rows, 12), key=SECRET)
    project.environment["ENDPOINT_KEY"] = SECRET
    with serving(drafted), serving(Endpoint(engine, key=SECRET)) as plain:
        chosen = ["acceptance.engine=endpoint", f"endpoint.model={MODEL}", "gates.max_engine_gap=3"]
        chosen += [f"endpoint.url={drafted.url}", f"endpoint.plain_url={plain.url}", "endpoint.api_key_env=ENDPOINT_KEY"]
        arguments = [word for one in chosen for word in ("--set", one)]
        assert ran(project.nodes("run", *arguments)) == {"engine_acceptance"}
        done = project.eyas("plan", str(project.settings), *arguments, "--set", "gates.max_engine_gap=0.1")
    assert done.returncode == 2 and "more than gates.max_engine_gap = 0.1" in done.stderr
    (report,) = (project.store / "reports").glob("*/report.md")
    assert "## Acceptance in vLLM 0.0.test" in report.read_text() and "for 2 of 2 prompts" in report.read_text()
    assert drafted.headers["Authorization"] == plain.headers["Authorization"] == f"Bearer {SECRET}"
    assert not holding(project, SECRET) and SECRET not in done.stdout + done.stderr


def test_engines_are_started_with_our_draft_and_with_one_that_only_they_run(project: Project) -> None:
    """In children that may open what they declare; our draft accepts there what it accepts here."""
    values = flat_values(architectures=["Eagle3DeepseekV2ForCausalLM"])
    theirs = write_draft(project.folder / "elsewhere" / "theirs", values, {"x": torch.ones(1)})
    starts = project.folder / "starts"
    chosen = [f"engine.command=[{sys.executable}, -m, tests.fake_vllm]", "engine.version=0.0.test", f"endpoint.model={MODEL}"]
    chosen += [f"engine.environment={{PYTHONPATH: {ROOT}, STARTS: {starts}}}", "acceptance.engine=start"]
    arguments = [word for one in [*chosen, f"acceptance.compare=[{theirs}]"] for word in ("--set", one)]
    nodes = project.nodes("run", *arguments)
    assert [node["node"] for node in nodes if node["status"] == "run"] == ["vLLM", "theirs"]
    started = [json.loads(line)["pid"] for line in starts.read_text().splitlines()]
    assert len(started) == 3 and not any(Path(f"/proc/{pid}").exists() for pid in started)
    report = max((project.store / "reports").glob("*/report.md")).read_text()
    assert "| ours | vLLM 0.0.test | 0 |" in report and "| theirs | vLLM 0.0.test | 0 |" in report
    assert "for 2 of 2 prompts" in report and "elsewhere" not in report
    planned = project.eyas("plan", str(project.settings), *arguments)
    assert planned.returncode == 0 and "it is judged in the engine alone" in planned.stderr
