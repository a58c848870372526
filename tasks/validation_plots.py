"""The plots of the validation report as PNG bytes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tasks.figures import BLUE, GREY, RED, new_figure, png
from tasks.sample_decisions import NormLimits

_MOST_SLICES = 24
_BINS = 60


def norms_plot(norms: Mapping[str, np.ndarray], limits: Mapping[str, NormLimits]) -> bytes:
    """A histogram of the samples' median norms for each state, as factors of its median, with the limits."""
    figure = new_figure(6.4, 1.0 + 1.15 * len(norms))
    every = figure.subplots(len(norms), 1, sharex=True, squeeze=False)[:, 0]
    factors = {name: values[np.isfinite(values) & (values > 0)] / limits[name].median for name, values in norms.items()}
    edges = _log_edges(factors, limits)
    for axes, (name, values) in zip(every, factors.items(), strict=True):
        limit = limits[name]
        axes.hist(values.clip(edges[0], edges[-1]), bins=edges, color=BLUE)
        for side in (limit.low / limit.median, limit.high / limit.median):
            axes.axvline(side, color=RED, linewidth=1)
        outside = int(((values < limit.low / limit.median) | (values > limit.high / limit.median)).sum())
        axes.set_title(f"{name}: median {limit.median:,.4g}, {outside} outside", fontsize=9, loc="left")
        axes.set_yscale("symlog", linthresh=1)
        axes.set_xscale("log")
        axes.set_ylabel("samples", fontsize=8)
        axes.tick_params(labelsize=8)
    marks = [mark for mark in (0.01, 0.1, 0.25, 0.5, 1, 2, 4, 10, 100) if edges[0] <= mark <= edges[-1]]
    every[-1].set_xticks(marks, [f"{mark:g}" for mark in marks])
    every[-1].minorticks_off()
    every[-1].set_xlabel("a sample's median state norm, over the corpus's median (red: limits)")
    return png(figure)


def _log_edges(factors: Mapping[str, np.ndarray], limits: Mapping[str, NormLimits]) -> np.ndarray:
    """Bin edges that show the limits and nearly all samples; what lies farther out is put into the outermost bin."""
    reach = max(limit.high / limit.median for limit in limits.values()) * 1.2
    for values in factors.values():
        if len(values):
            reach = max(reach, float(np.exp(np.abs(np.log(values)).max())))
    reach = min(reach, 100.0)
    return np.geomspace(1 / reach, reach, _BINS + 1)


def supervised_plot(supervised: np.ndarray) -> bytes:
    """A histogram of supervised tokens a sample, in bins that double."""
    figure = new_figure()
    axes = figure.subplots()
    top = max(1, int(supervised.max(initial=1)).bit_length())
    edges = [0, *(2**power for power in range(top + 1))]
    counts = np.histogram(supervised, edges)[0]
    bars = axes.bar(range(len(counts)), counts, color=BLUE)
    axes.bar_label(bars, [f"{count:,}" if count else "" for count in counts], padding=2, fontsize=8)
    names = [f"{low:,}" if high - low == 1 else f"{low:,}–{high - 1:,}" for low, high in zip(edges, edges[1:], strict=False)]
    axes.set_xticks(range(len(counts)), names, fontsize=8, rotation=30 if len(names) > 8 else 0)
    axes.margins(y=0.15)
    axes.set_xlabel("supervised tokens of a sample")
    axes.set_ylabel("samples")
    axes.set_title(f"Supervised length of {len(supervised):,} samples", fontsize=10)
    return png(figure)


def slices_plot(rows: Sequence[dict[str, Any]]) -> bytes:
    """On-policy score and argmax agreement of each slice that was scored."""
    shown = [row for row in rows if row["score"] is not None][:_MOST_SLICES]
    figure = new_figure(7.2, 1.2 + 0.28 * max(1, len(shown)))
    left, right = figure.subplots(1, 2, sharey=True)
    places = range(len(shown))
    for axes, name, title in ((left, "score", "mean log-probability"), (right, "agreement", "argmax agreement")):
        bars = axes.barh(places, [row[name] for row in shown], color=BLUE)
        form = "{:.2f}" if name == "score" else "{:.1%}"
        axes.bar_label(bars, [form.format(row[name]) for row in shown], padding=3, fontsize=8)
        axes.set_title(title, fontsize=10)
        axes.tick_params(labelsize=8)
    left.set_xlim(1.25 * min([row["score"] for row in shown], default=-1), 0)
    right.set_xlim(0, 1.2)
    right.set_xticks([0, 0.5, 1])
    left.set_yticks(places, [f"{row['slice']} ({row['scored']:,} tokens)" for row in shown])
    left.invert_yaxis()
    if not shown:
        left.set_title("no slice was scored", fontsize=10)
    return png(figure)


def reasons_plot(reasons: Mapping[str, int], dropped: Mapping[str, int], samples: int) -> bytes:
    """Samples in quarantine by reason, and samples dropped."""
    named = [*((name, count, BLUE) for name, count in reasons.items()), *((n, c, GREY) for n, c in dropped.items())]
    named = [entry for entry in named if entry[1]]
    figure = new_figure(6.4, 1.2 + 0.32 * max(1, len(named)))
    axes = figure.subplots()
    bars = axes.barh(range(len(named)), [count for _, count, _ in named], color=[color for _, _, color in named])
    axes.bar_label(bars, [f"{count:,}" for _, count, _ in named], padding=3, fontsize=8)
    axes.set_yticks(range(len(named)), [name for name, _, _ in named], fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel("samples")
    axes.xaxis.get_major_locator().set_params(integer=True)
    title = "Quarantined (blue) and dropped (grey)" if named else "Nothing was put aside"
    axes.set_title(f"{title} of {samples:,} samples", fontsize=10)
    return png(figure)
