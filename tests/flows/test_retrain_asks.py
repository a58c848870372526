"""Retraining where a person decides, through a real Prefect server: nothing is held meanwhile, and no answer is lost."""

import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from artifacts.aliases import Alias
from flows.champions import Championship
from tasks.settings import Settings
from tests.deployed import deployed_run, execute, resume, said, state_of
from tests.month import Month, good, good_again, write_verifier
from tests.projects import Project, wait_for


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory, whole_verifier: Path) -> tuple[Path, str]:
    """A month whose first draft waits for a person, and the draft."""
    root = tmp_path_factory.mktemp("decided") / "month"
    root.mkdir()
    month = Month(root, write_verifier(root / "verifier", whole_verifier))
    asking = month.settings.promotion.model_copy(update={"ask": "always"})
    month.settings = month.settings.model_copy(update={"promotion": asking})
    outcome = month.retrain(good).outcome
    assert outcome.verdict == "waits" and outcome.candidate
    return root, outcome.candidate


class Asked:
    """A copy of that month, and the code that retrains it."""

    def __init__(self, root: Path, decided: Path, checkout: Path, api: str) -> None:
        shutil.copytree(decided, root / "month", copy_function=os.link)
        self.month = Month(root / "month", root / "month" / "verifier")
        shutil.copytree(checkout, root / "project")
        self.project = Project.at(root / "project", api)

    def settings(self, **changes: Any) -> Settings:
        """The month's settings, of which ``changes`` replace parts of sections."""
        whole = self.month.settings.model_dump(exclude_unset=True)
        return Settings.model_validate({**whole, **{name: {**whole.get(name, {}), **one} for name, one in changes.items()}})

    def eyas(self, settings: Settings) -> str:
        """What ``eyas retrain`` says."""
        self.project.settings.write_text(yaml.safe_dump(settings.model_dump(mode="json", exclude_unset=True)))
        done = self.project.eyas("retrain", str(self.project.settings))
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    def run(self, api: Any, settings: Settings) -> Any:
        """A run of a deployment."""
        entrypoint = "flows/served_retrain.py:retrain_flow"
        return deployed_run(api, "retrain", entrypoint, self.project.folder, settings)

    def alias(self) -> Alias | None:
        """The champion's alias."""
        return Championship.of(self.month.settings, self.month.host).alias()


@pytest.fixture
def asked(tmp_path: Path, decided: tuple[Path, str], checkout: Path, prefect_api: str) -> Asked:
    return Asked(tmp_path, decided[0], checkout, prefect_api)


def closed(folder: Path) -> dict[str, str]:
    """A window that opens in an hour, and whose commands would leave a trace."""
    start, end = (datetime.now(UTC) + timedelta(hours=hours) for hours in (1, 2))
    return {"start": f"{start:%H:%M}", "end": f"{end:%H:%M}", "before": f"echo begun >> {folder / 'said'}"}


def test_what_was_decided_is_done_outside_of_the_window(asked: Asked, decided: tuple[Path, str]) -> None:
    window, draft = closed(asked.month.folder.parent), decided[1]
    told = asked.eyas(asked.settings(window=window, promotion={"ask": "always"}))
    assert told.startswith(f"waits {draft[:12]}: there is no champion yet") and f"--to {draft[:12]}" in told
    assert asked.alias() is None
    assert asked.eyas(asked.settings(window=window)).startswith(f"promoted {draft[:12]}: ")
    alias = asked.alias()
    assert alias and alias.digest == draft and not (asked.month.folder.parent / "said").exists()
    assert asked.eyas(asked.settings(window=window)).startswith("nothing new: ")


@pytest.mark.parametrize(("promote", "name"), [(True, "Promoted"), (False, "Refused")])
def test_a_persons_word_is_taken_outside_of_the_window(
    asked: Asked, decided: tuple[Path, str], prefect_api: str, promote: bool, name: str
) -> None:
    """More has landed while the person was asked; the answer is about the draft that the question was about."""
    settings = asked.settings(window=closed(asked.month.folder.parent), promotion={"ask": "always"})
    with temporary_settings({PREFECT_API_URL: prefect_api}), get_client(sync_client=True) as api:
        run = asked.run(api, settings)
        execute(asked.project, run).wait(240)
        assert state_of(api, run).name == "Suspended", said(asked.project)
        good_again(asked.month.folder)
        resume(api, run, "Suspended", promote=promote, because="I heard it")
        execute(asked.project, run).wait(240)
        state = state_of(api, run)
    assert (state.type.value, state.name) == ("COMPLETED", name), said(asked.project)
    alias = asked.alias()
    if promote:
        assert alias and alias.digest == decided[1] and "approved: I heard it" in alias.history[-1].because
    else:
        assert alias is None and "a person kept the champion: I heard it" in str(state.message)
    (asked.month.folder / "week4.jsonl").unlink()
    assert asked.eyas(settings).startswith("nothing new: "), "nobody is asked about this draft again"


def test_over_its_budget_a_retraining_holds_nothing_while_a_person_is_asked(asked: Asked, prefect_api: str) -> None:
    """The window's commands are told apart by when they ran: serving is back while the question stands."""
    told = asked.month.folder.parent / "said"
    window = {"before": f"echo begun >> {told}", "after": f"echo free >> {told}"}
    settings = asked.settings(budget={"bytes": 1}, window=window, training={"parent": "champion", "epochs": 1})
    good_again(asked.month.folder)
    drafts = asked.month.host.records.root / "training"
    with temporary_settings({PREFECT_API_URL: prefect_api}), get_client(sync_client=True) as api:
        run = asked.run(api, settings)
        executed = execute(asked.project, run)
        wait_for(lambda: state_of(api, run).name == "Paused")
        assert told.read_text().split() == ["begun", "free"]
        with asked.month.host.store.alone("gc"):
            assert len(list(drafts.glob("*.json"))) == 1
        resume(api, run, "Paused", approve=True)
        executed.wait(400)
        state = state_of(api, run)
    assert (state.type.value, state.name) in (("COMPLETED", "Promoted"), ("COMPLETED", "Refused")), said(asked.project)
    assert told.read_text().split() == ["begun", "free"] * 2 and len(list(drafts.glob("*.json"))) == 2
