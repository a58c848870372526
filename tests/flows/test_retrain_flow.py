"""`eyas retrain` through Prefect and children, on a project whose flow has run to its end."""

import json
from pathlib import Path
from typing import Any

from tests.flows.test_cache import ask, newest_run
from tests.projects import Project, ran, wait_for


def retrain(project: Project) -> tuple[dict[str, Any], bool]:
    """What `eyas retrain` says, and whether it started Prefect for that."""
    done = project.eyas("retrain", str(project.settings), "--json", "--set", "promotion.min_samples=2")
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout)
    return result, "starting Prefect" in done.stderr


def test_where_all_is_made_the_decision_alone_runs(project: Project, prefect_api: str) -> None:
    result, started = retrain(project)
    assert started and ran(result["nodes"]) == {"promotion"}
    assert result["because"][0].startswith("there is no champion yet, and by real")
    state = wait_for(lambda: (s := ask(prefect_api, f"flow_runs/{newest_run(prefect_api)}", None)["state"]) and s)
    assert (state["type"], state["name"]) == ("COMPLETED", result["verdict"].title())
    assert result["because"][0] in (Path(result["report"]).parent / "decision.md").read_text()
    report = (Path(result["report"]).parent / "report.md").read_text()
    assert f"> **Do not serve this draft: it was refused.**\n>\n> - {result['because'][0]}\n" in report
    again, started = retrain(project)
    assert again["verdict"] == "nothing new" and again["nodes"] == [] and not started, "it ends in seconds"
