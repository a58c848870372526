"""The report of a run: what a person looks at first. Written to the state folder and shown in Prefect."""

import base64
import shutil
from pathlib import Path
from typing import Any

from artifacts.store import Store
from flows.outcome import Outcome
from flows.report_cases import slices
from flows.report_champion import Champion, champion
from flows.report_compared import compared_section
from flows.report_costs import costs, noted
from flows.report_data import data_sections, facts_ref, validation_plots
from flows.report_decision import decided
from flows.report_engine import engine_section
from flows.report_html import page
from flows.report_lineage import lineage
from flows.report_prompts import seen_prompts
from flows.report_training import draw_curves, training_section
from flows.report_verdict import RULE, verdict
from flows.train_draft import DraftRun
from running.host import Host
from running.metric_log import METRICS
from running.walk import Step
from tasks.formats import PLOT
from tasks.markdown import markdown_table
from tasks.settings import Settings


def write_report(
    settings: Settings, host: Host, steps: list[Step], made: DraftRun, run_folder: Path, outcome: Outcome | None = None
) -> tuple[Path, str]:
    """The report's path and its markdown for Prefect, plots inside; the verdict first, which is a retraining's ``outcome``.

    ``report.html`` has everything in it; ``report.md`` has its plots beside it. They lie in the store, which no text
    may leave, and are no artifacts: they tell of one run.
    """
    store, folder = host.store, host.store.root / "reports" / run_folder.name
    folder.mkdir(parents=True)
    curves = draw_curves(store, made, folder, host.state / "plots")
    plots = [*([plot_of(store, made)] if made.judged else []), *validation_plots(store, made.checked)]
    sections = [*judgement(settings, host, made, outcome), *engine_section(made), *seen_prompts(settings, store, made)]
    sections += [training_section(made, curves, run_folder / METRICS)]
    records = noted(store, steps)
    sections += [data_sections(settings, store, made), costs(store, steps, records), lineage(store, records, made)]
    title = f"Draft {settings.name} for {made.verifier.name}"
    text = f"# {title}\n\n" + "\n\n".join(sections) + "\n"
    (folder / "report.md").write_text(text)
    for plot in plots:
        shutil.copy2(plot, folder / plot.name)
    for plot in [*plots, *([curves] if curves else [])]:
        encoded = base64.b64encode(plot.read_bytes()).decode()
        text = text.replace(f"]({plot.name})", f"](data:image/png;base64,{encoded})")
    (folder / "report.html").write_text(page(title, text))
    return folder / "report.html", text


def judgement(settings: Settings, host: Host, made: DraftRun, outcome: Outcome | None) -> list[str]:
    """The verdict, and what our own judges say; of them nothing where only an engine judged."""
    best = {one.node.name: champion(host.store, host.aliases, made.verifier, one) for one in made.judged}
    said = decided(outcome) if outcome else f"> {verdict(settings, made, best)}\n>\n> {RULE}"
    if not made.judged:
        return [said]
    return [
        said,
        acceptance(made, best),
        f"![accepted by position]({PLOT})",
        *compared_section(host.store, made),
        *slices(host.store, made.judged),
    ]


def plot_of(store: Store, made: DraftRun) -> Path:
    """The plot of the first acceptance: real decoding where there is one."""
    return store.open(facts_ref(made.judged[0], "acceptance").digest) / PLOT


def acceptance(made: DraftRun, best: dict[str, Champion | None]) -> str:
    """Acceptance by each method, against the champion on the same answers and an untrained draft."""
    rows = []
    for one in made.judged:
        facts, its = facts_ref(one, "acceptance").facts, best[one.node.name]
        rows.append(_row("this one", facts))
        if its and its.facts:
            rows.append(_row("champion", its.facts))
        rows.append(_row("untrained", facts, "untrained_"))
    head = ["method", "draft", "acceptance length", "95% interval", "accepted at 1, 2, …", "answers", "equal to plain decoding"]
    note = "Acceptance length: tokens a verifier step, the bonus token included."
    if "parent" in made.training.node.inputs:
        note += " Untrained is the draft before its first step here: the parent."
    return f"## Acceptance\n\n{markdown_table(head, rows)}\n\n{note}"


def _row(draft: str, facts: dict[str, Any], prefix: str = "") -> list[str]:
    interval = "" if prefix else f"{facts['low']:.2f} to {facts['high']:.2f}"
    positions = ", ".join(f"{share:.0%}" for share in facts[prefix + "per_position"])
    lossless = f"{facts['lossless']} of {facts['prompts']}" if "lossless" in facts and not prefix else ""
    length = f"**{facts[prefix + 'length']:.2f}**"
    return [facts["method"], draft, length, interval, positions, f"{facts['prompts']:,}", lossless]
