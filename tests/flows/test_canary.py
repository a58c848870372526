"""Texts of conversations stay in the store: a word that every text holds is nowhere else."""

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.projects import CANARY, Project, ran

Finished = tuple[Project, list[dict[str, Any]]]


def holders(folder: Path) -> Iterator[Path]:
    """The files under ``folder`` whose bytes hold the canary, in UTF-8 or UTF-16."""
    for path in folder.rglob("*"):
        if path.is_file() and path.stat().st_size:
            with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                if any(content.find(CANARY.encode(code)) >= 0 for code in ("utf-8", "utf-16-le")):
                    yield path


def test_no_text_leaves_the_store(finished: Finished, finished_folder: Path) -> None:
    (project, nodes), server = finished, (finished_folder / "server").resolve()
    assert "acceptance" in ran(nodes) and (server / "prefect.db").stat().st_size > 100_000
    assert list(holders(server)) == [], "Prefect's database and log"
    reports = {path.name for path in (project.store / "reports").rglob("report.*")}
    assert reports == {"report.md", "report.html"}
    assert list(holders(project.folder / "state")) == [], "logs of children, orders, pointers"
    assert list(holders(project.folder / "prefect-home")) == []


def test_in_the_store_only_answers_are_text(finished: Finished) -> None:
    project, _ = finished
    texts = {path.name for path in holders(project.store)}
    assert texts <= {"conversations.jsonl"}, (
        "records, rejects, checks, acceptance, reports and the exported draft hold ids, counts"
    )


def test_the_canary_would_be_found(finished: Finished) -> None:
    project, _ = finished
    assert {path.name for path in holders(project.folder)} == {"a.jsonl", "b.jsonl", "prompts.jsonl"}


def test_an_error_and_a_warning_tell_no_text(project: Project) -> None:
    with open(project.folder / "b.jsonl", "a") as file:
        file.write(f'{{"messages": [{{"role": "user", "content": "{CANARY}"}}]}}\n{CANARY}\n' * 20)
    done = project.eyas("run", str(project.settings))
    assert done.returncode == 2 and "gates.max_rejected" in done.stderr
    assert CANARY not in done.stderr + done.stdout
