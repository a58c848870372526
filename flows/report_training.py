"""The report's section about training: which step became the draft, and the curves."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from artifacts.code_digest import closure
from artifacts.disk import write_atomically
from artifacts.manifest import canonical_json, digest_bytes
from artifacts.store import Store
from flows.report_data import facts_ref, open_whole
from flows.train_draft import DraftRun
from running.snapshot import project_root
from tasks.choice_words import in_words
from tasks.formats import CURVES

TRAINING_PLOT = "training.png"
_LONG_WAIT = 0.03  # of the steps' time: from here on the report says what was waited for


def training_section(made: DraftRun, plot: Path | None, metrics: Path | None = None) -> str:
    """Steps, loss, how the draft was chosen, what the device allowed, what loggers wrote; the plot where there are curves."""
    facts = facts_ref(made.training, "draft").facts
    sentence = f"{facts['steps']:,} steps, loss {facts['loss']:.3f} at the end. "
    if "replayed_length" in facts:
        sentence += (
            f"The draft is that of step {facts['best_step']:,}: its replay on {facts['replayed_samples']} held-out samples "
            f"gave {facts['replayed_length']:.2f} tokens a step, the most of those made while it was trained."
        )
    else:
        sentence += "Nothing was replayed meanwhile; the draft is that of the last step."
    sentence += _waiting(facts_ref(made.training, "curves").facts)
    if cut := facts.get("cut_samples"):
        sentence += (
            f" {cut:,} samples are longer than a pack and were cut: none of their tokens saw more than `training.pack_tokens` "
            "before it."
        )
    if facts.get("choices"):
        sentence += f" On the device it took {in_words(facts['choices'])}."
    if "continued_at" in facts:
        sentence += f" The first {facts['continued_at']:,} steps were taken over from a checkpoint of another training."
    if metrics and metrics.is_dir():
        sentence += f" Its loggers wrote into `{metrics}`."
    return f"## Training\n\n{sentence}" + (f"\n\n![curves of the training]({plot.name})" if plot else "")


def _waiting(facts: Mapping[str, Any]) -> str:
    """How long the steps waited for packs and, where that is long, what the files gave."""
    waited, rate = facts.get("loader_share"), facts.get("loader_rate")
    if waited is None:
        return ""
    told = f" It waited for data in {waited:.1%} of the steps' time"
    if waited < _LONG_WAIT or not rate:
        return f"{told}."
    return f"{told}: the states' files gave {rate / 1e9:.2f} GB/s; a faster disk, or memory that holds them, would end that."


def draw_curves(store: Store, made: DraftRun, folder: Path, drawn: Path) -> Path | None:
    """The plot, put into ``folder``; None where the curves were collected.

    Plots are kept in ``drawn`` by what they show and the code that draws them: drawing loads two libraries, and a run in
    which everything hits draws nothing.
    """
    curves, draft = facts_ref(made.training, "curves"), facts_ref(made.training, "draft")
    source = open_whole(store, curves)
    if source is None:
        return None
    code = closure(project_root(), "tasks.curve_plots")
    kept = drawn / f"{digest_bytes(canonical_json([curves.digest, draft.facts['best_step'], code]))}.png"
    if not kept.exists():
        write_atomically(kept, _plot(source / CURVES, draft.facts["best_step"]))
    plot = folder / TRAINING_PLOT
    shutil.copyfile(kept, plot)
    return plot


def _plot(path: Path, best_step: int) -> bytes:
    from tasks.curve_plots import training_plot
    from tasks.curves import read_curves

    with open(path, "rb") as file:
        return training_plot(read_curves(file), best_step)
