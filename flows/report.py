"""The report of a run: what a person looks at first. Written to the state folder and shown in Prefect."""

import base64
import shutil
from pathlib import Path
from typing import Any

from artifacts.store import Store
from flows.report_data import data_sections, facts_ref, validation_plots
from flows.report_training import draw_curves, training_section
from flows.train_draft import DraftRun
from running.metric_log import METRICS
from running.tables import STAGE_HEADER, stage_rows
from running.walk import Step
from tasks.formats import PLOT
from tasks.markdown import markdown_table
from tasks.settings import Settings


def write_report(settings: Settings, store: Store, steps: list[Step], made: DraftRun, run_folder: Path) -> tuple[Path, str]:
    """The report's path (``report.md`` with its plots beside it) and its markdown for Prefect, plots inside."""
    state = run_folder.parent.parent
    folder = state / "reports" / run_folder.name
    folder.mkdir(parents=True)
    curves = draw_curves(store, made, folder, state / "plots")
    plots = [plot_of(store, made), *validation_plots(store, made.checked)]
    sections = [acceptance(made), f"![accepted by position]({PLOT})", training_section(made, curves, run_folder / METRICS)]
    sections.append(data_sections(settings, store, made))
    sections += [f"## What ran\n\n{markdown_table(STAGE_HEADER, stage_rows(steps))}", lineage(store, made)]
    text = f"# Draft `{settings.name}` for {made.verifier.name}\n\n" + "\n\n".join(sections) + "\n"
    (folder / "report.md").write_text(text)
    for plot in plots:
        shutil.copy2(plot, folder / plot.name)
    for plot in [*plots, *([curves] if curves else [])]:
        encoded = base64.b64encode(plot.read_bytes()).decode()
        text = text.replace(f"]({plot.name})", f"](data:image/png;base64,{encoded})")
    return folder / "report.md", text


def plot_of(store: Store, made: DraftRun) -> Path:
    """The plot of the first acceptance: real decoding where there is one."""
    return store.open(facts_ref(made.judged[0], "acceptance").digest) / PLOT


def acceptance(made: DraftRun) -> str:
    """Acceptance by each method, against an untrained draft."""
    rows = []
    for one in made.judged:
        facts = facts_ref(one, "acceptance").facts
        for name, prefix in (("trained", ""), ("untrained", "untrained_")):
            interval = "" if prefix else f"{facts['low']:.2f} to {facts['high']:.2f}"
            positions = ", ".join(f"{share:.0%}" for share in facts[prefix + "per_position"])
            lossless = f"{facts['lossless']} of {facts['prompts']}" if "lossless" in facts and not prefix else ""
            rows.append([facts["method"], name, f"**{facts[prefix + 'length']:.2f}**", interval, positions, lossless])
    head = ["method", "draft", "acceptance length", "95% interval", "accepted at 1, 2, …", "equal to plain decoding"]
    note = "Acceptance length: tokens a verifier step, the bonus token included."
    return f"## Acceptance\n\n{markdown_table(head, rows)}\n\n{note}"


def lineage(store: Store, made: DraftRun) -> str:
    """Digests of what the draft was made from."""
    outputs = {
        "vocabulary": facts_ref(made.vocabulary, "vocabulary"),
        "draft": facts_ref(made.training, "draft"),
        "checkpoint": facts_ref(made.export, "export"),
    }
    rows = [[name, f"`{ref.digest}`", ", ".join(_plain(ref.facts))] for name, ref in outputs.items()]
    where = store.folder(outputs["checkpoint"].digest)
    return f"## Artifacts\n\n{markdown_table(['artifact', 'digest', 'facts'], rows)}\n\nThe checkpoint lies in `{where}`."


def _plain(facts: dict[str, Any]) -> list[str]:
    return [f"{name} {value}" for name, value in facts.items() if not name.endswith("_by_slice")]
