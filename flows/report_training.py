"""The report's section about training: which step became the draft, and the curves."""

from pathlib import Path

from artifacts.store import Store
from flows.report_data import facts_ref, open_whole
from flows.train_draft import DraftRun
from tasks.curve_plots import training_plot
from tasks.curves import read_curves
from tasks.formats import CURVES

TRAINING_PLOT = "training.png"


def training_section(made: DraftRun, plot: Path | None) -> str:
    """Steps, loss, and how the draft was chosen; the plot where the curves are still there."""
    facts = facts_ref(made.training, "draft").facts
    sentence = f"{facts['steps']:,} steps, loss {facts['loss']:.3f} at the end. "
    if "replayed_length" in facts:
        sentence += (
            f"The draft is that of step {facts['best_step']:,}: its replay on {facts['replayed_samples']} held-out samples "
            f"gave {facts['replayed_length']:.2f} tokens a step, the most of those made while it was trained."
        )
    else:
        sentence += "Nothing was replayed meanwhile; the draft is that of the last step."
    if "continued_at" in facts:
        sentence += f" The first {facts['continued_at']:,} steps were taken over from a checkpoint of another training."
    return f"## Training\n\n{sentence}" + (f"\n\n![curves of the training]({plot.name})" if plot else "")


def draw_curves(store: Store, made: DraftRun, folder: Path) -> Path | None:
    """The plot, drawn into ``folder``; None where the curves were collected."""
    curves_folder = open_whole(store, facts_ref(made.training, "curves"))
    if curves_folder is None:
        return None
    with open(curves_folder / CURVES, "rb") as file:
        curves = read_curves(file)
    plot = folder / TRAINING_PLOT
    plot.write_bytes(training_plot(curves, facts_ref(made.training, "draft").facts["best_step"]))
    return plot
