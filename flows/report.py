"""The report of a run: what a person looks at first. Written to the state folder and shown in Prefect."""

import base64
import shutil
from pathlib import Path
from typing import Any

from artifacts.stage import Made
from artifacts.store import Store
from flows.train_draft import DraftRun
from running.tables import reasons
from running.walk import Step
from tasks.formats import PLOT
from tasks.settings import Settings


def write_report(settings: Settings, store: Store, steps: list[Step], made: DraftRun, run_folder: Path) -> tuple[Path, str]:
    """The report's path (``report.md`` with its plot beside it) and its markdown for Prefect, plot inside."""
    folder = run_folder.parent.parent / "reports" / run_folder.name
    folder.mkdir(parents=True)
    plot = plot_of(store, made)
    shutil.copy2(plot, folder / PLOT)
    sections = [acceptance(made), "{plot}", data(made), ran(steps), lineage(store, made)]
    text = f"# Draft `{settings.name}` for {made.verifier.name}\n\n" + "\n\n".join(sections) + "\n"
    (folder / "report.md").write_text(text.replace("{plot}", f"![accepted by position]({PLOT})"))
    encoded = base64.b64encode(plot.read_bytes()).decode()
    return folder / "report.md", text.replace("{plot}", f"![accepted by position](data:image/png;base64,{encoded})")


def plot_of(store: Store, made: DraftRun) -> Path:
    """The plot of the first acceptance: real decoding where there is one."""
    return store.open(facts_ref(made.judged[0], "acceptance").digest) / PLOT


def facts_ref(made: Made, name: str) -> Any:
    """The reference of an output of a finished node."""
    assert made.outputs is not None
    return made.outputs[name]


def markdown_table(header: list[str], rows: list[list[str]]) -> str:
    """A table in GitHub's markdown."""
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *rows])


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


def data(made: DraftRun) -> str:
    """Rows in and out, quarantine, coverage."""
    rows = []
    for one in made.corpora:
        facts = facts_ref(one, "rejects").facts
        why = ", ".join(f"{reason}: {count}" for reason, count in facts["reasons"].items())
        rows.append([one.node.name, str(facts["rows"]), str(facts["samples"]), str(facts["rejects"]), why])
    checked, words = facts_ref(made.checked, "report").facts, facts_ref(made.vocabulary, "vocabulary").facts
    norms = ", ".join(f"{name} {value:.1f}" for name, value in checked["norms"].items())
    return (
        "## Data\n\n"
        + markdown_table(["source", "rows", "samples", "rejects", "reasons"], rows)
        + f"\n\n{checked['tokens']:,} tokens, {checked['mask_coverage']:.0%} of them supervised; {checked['quarantined']} "
        f"of {checked['samples']} samples in quarantine; median norms {norms}.\n\n"
        f"The draft vocabulary of {words['size']:,} (of {words['target_size']:,}) covers {words['coverage']:.1%} of the "
        f"training answers' tokens and {words['held_out_coverage']:.1%} of the held-out ones'."
    )


def ran(steps: list[Step]) -> str:
    """What ran and what hit, stage by stage."""
    rows = []
    for stage in dict.fromkeys(step.stage for step in steps):
        mine = [step for step in steps if step.stage == stage]
        running = [step for step in mine if step.status == "run"]
        because = reasons(sorted({reason for step in running for reason in step.because}))
        seconds = sum(step.seconds or 0.0 for step in running)
        rows.append([stage, str(len(running)), str(len(mine) - len(running)), f"{seconds:.1f}", because])
    return "## What ran\n\n" + markdown_table(["stage", "ran", "hit", "seconds", "because"], rows)


def lineage(store: Store, made: DraftRun) -> str:
    """Digests of what the draft was made from."""
    outputs = {
        "vocabulary": facts_ref(made.vocabulary, "vocabulary"),
        "draft": facts_ref(made.training, "draft"),
        "checkpoint": facts_ref(made.export, "export"),
    }
    rows = [[name, f"`{ref.digest}`", ", ".join(f"{k} {v}" for k, v in ref.facts.items())] for name, ref in outputs.items()]
    where = store.folder(outputs["checkpoint"].digest)
    return f"## Artifacts\n\n{markdown_table(['artifact', 'digest', 'facts'], rows)}\n\nThe checkpoint lies in `{where}`."
