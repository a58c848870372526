"""What a person does in the browser: fill the form, watch the run, read its report, mend what failed and press Retry.

The screenshots of the steps lie in the test's folder, or in that of EYAS_SCREENSHOTS.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chromium import Page, chromium
from tests.projects import wait_for
from tests.served import WHY, Served, break_export, mend_export, serving

pytestmark = pytest.mark.browser
SMALL: dict[str, Any] = {"data": {"conversations": ["a.jsonl"]}, "training": {"epochs": 2, "pack_tokens": 512}}
TITLE = "e.innerText.trim() === 'train-draft'"  # the name of the deployment; that of its flow beside it is the same
BADGE = "document.querySelector('.state-badge')?.innerText.trim()"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, checkout: Path, cut_verifier: Path) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served") / "project"
    with serving(folder, checkout, cut_verifier, lambda name, settings: {**settings, **SMALL}) as served:
        yield served


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("chromium") / "profile") as page:
        yield page


@pytest.fixture(scope="module")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots go."""
    given = os.environ.get("EYAS_SCREENSHOTS")
    folder = Path(given).absolute() if given else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def field(section: str, label: str) -> str:
    """The field of the form with this label in a section."""
    return f"""((section, label) => {{
        const named = (within, text) => [...within.querySelectorAll('.schema-form-property')].find(e =>
            e.querySelector('.schema-form-property__label')?.textContent.trim().replace(' (Optional)', '') === text);
        const found = named(document, section);
        return found && named(found, label)?.querySelector('input, textarea, select')
    }})('{section}', '{label}')"""


def choose(page: Page, select: str, option: str, shot: Path) -> None:
    """Open a drop-down by the keyboard (the browser draws no other without a screen) and click on an option."""
    page.value(f"{select}.focus()")
    page.press("ArrowDown", 40)
    page.wait(f"shown('{option}')?.closest('.p-select-option')")
    page.shoot(shot)
    page.click_text(option)


def submit(page: Page, served: Served) -> str:
    """Press the form's button; the id of the run that it starts."""
    body = {"deployments": {"name": {"any_": ["train-draft"]}}}
    before = {run["id"] for run in served.ask("flow_runs/filter", body)}
    page.click_text("Submit")
    (run,) = wait_for(lambda: {run["id"] for run in served.ask("flow_runs/filter", body)} - before, 120, served.process)
    return str(run)


def state_in_list(name: str) -> str:
    """The state of a run in the deployment's list; above it the page goes on showing a run as the next one that has begun."""
    return f"""(name => {{
        let row = [...document.querySelectorAll('a')].filter(e => e.innerText.trim() === name).pop();
        while (row && !row.querySelector('.state-badge')) row = row.parentElement;
        return row?.querySelector('.state-badge').innerText.trim()
    }})('{name}')"""


def watch(page: Page, served: Served, run: str, state: str) -> None:
    """Look at the deployment's runs until one is in a state, then at that run.

    The page of a run draws its graph anew in every frame, without a GPU at the cost of what the run itself could use.
    """
    name = served.ask(f"flow_runs/{run}", method="GET")["name"]
    page.open(f"{served.address}/deployments/deployment/{served.deployment('train-draft')['id']}?tab=Runs")
    page.wait(f"{state_in_list(name)} === '{state}'", 1200)
    page.open(f"{served.address}/runs/flow-run/{run}")
    page.wait(f"{BADGE} === '{state}'")
    page.sees("plan: ")  # in its log


def test_a_form_is_filled_and_its_run_is_watched_to_its_report(served: Served, page: Page, shots: Path) -> None:
    assert not served.address.endswith(":4200"), "on another port the UI must be told where its server is"
    page.open(f"{served.address}/deployments")
    page.click(f"[...document.querySelectorAll('a[href*=\"/deployments/deployment/\"]')].find(e => {TITLE})")
    page.click_text("Run")
    page.click_text("Custom run")
    page.wait(field("Window", "Timezone"))
    page.shoot(shots / "1_form.png")
    page.write(field("settings", "Name"), "by hand")
    page.write(field("Training", "Epochs"), "1")
    choose(page, field("Training", "Scheduler"), "linear", shots / "2_drop_down.png")
    page.wait(f"{field('Training', 'Scheduler')}.value === 'linear'")
    run = submit(page, served)
    page.open(f"{served.address}/runs/flow-run/{run}")
    page.wait(f"{BADGE} === 'Running'", 300)
    page.sees("running on cpu")
    page.shoot(shots / "3_running.png")
    watch(page, served, run, "Completed")
    page.shoot(shots / "4_completed.png")
    told = served.ask(f"flow_runs/{run}", method="GET")["parameters"]["settings"]
    assert (told["name"], told["training"]["epochs"], told["training"]["scheduler"]) == ("by hand", 1, "linear")
    page.click_text("Artifacts")
    page.click_text("draft-report")
    page.sees("The rule: serve a draft")  # the report itself, not its name in the list
    page.shoot(shots / "5_report.png")
    page.height(5600)
    page.shoot(shots / "6_whole_report.png")
    page.height()


def test_a_run_that_failed_is_mended_and_retried(served: Served, page: Page, shots: Path) -> None:
    """The run before once more, with export broken; then mended, by which it is another code and runs."""
    break_export(served.project)
    (before,) = served.ask("flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": ["COMPLETED"]}}}})
    page.open(f"{served.address}/runs/flow-run/{before['id']}")
    page.click("document.querySelector('.p-icon-button-menu button')")
    page.click_text("Copy to new run")
    page.wait(f"{field('Training', 'Epochs')}?.value === '1'")
    run = submit(page, served)
    watch(page, served, run, "Failed")
    page.sees(WHY)
    page.shoot(shots / "7_failed.png")
    made = served.made()
    mend_export(served.project)
    page.click_text("Retry")
    page.click("[...document.querySelectorAll('.p-modal button')].find(e => e.innerText.trim() === 'Retry')")
    watch(page, served, run, "Completed")
    page.shoot(shots / "8_retried.png")
    assert served.made() == {**made, "export": made["export"] + 1}
    tasks = served.ask("task_runs/filter", {"task_runs": {"flow_run_id": {"any_": [run]}}, "sort": "END_TIME_DESC"})
    export = [task["state"]["name"] for task in tasks if task["name"].startswith("export")]
    assert sorted(export) == ["Completed", "Failed"] and {task["state"]["name"] for task in tasks} == {"Cached", *export}


def test_over_its_budget_a_run_is_resumed(served: Served, page: Page, shots: Path) -> None:
    """Real decoding is to be done again; who resumes the run reads what it would cost and approves."""
    judged = {"prompts": "prompts.jsonl", "max_new_tokens": 8}
    run = served.start(
        "train-draft",
        acceptance=judged,
        budget={"gpu_hours": 1e-9},
        training={**SMALL["training"], "epochs": 1, "scheduler": "linear"},
    )
    watch(page, served, run, "Paused")
    page.click_text("Resume")
    page.sees("GPU hours")
    switch = "document.querySelector('.p-modal [role=switch]')"
    page.click(switch)
    page.wait(f"{switch}.ariaChecked === 'true'")
    page.shoot(shots / "9_resume.png")
    page.click("[...document.querySelectorAll('.p-modal button')].find(e => e.innerText.trim() === 'Submit')")
    watch(page, served, run, "Completed")
    page.shoot(shots / "10_resumed.png")
