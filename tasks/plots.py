"""Plots as PNG bytes; the same data gives the same bytes."""

import io
from typing import Any


def acceptance_plot(facts: dict[str, Any]) -> bytes:
    """Share of verifier steps in which each drafted position was accepted, the draft beside an untrained one."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.2), dpi=110, layout="constrained")
    axes = figure.subplots()
    positions = range(1, facts["k"] + 1)
    bars = axes.bar(
        [p - 0.2 for p in positions],
        facts["per_position"],
        0.4,
        color="#2f6f9f",
        label=f"trained, {facts['length']:.2f} tokens a step",
    )
    axes.bar(
        [p + 0.2 for p in positions],
        facts["untrained_per_position"],
        0.4,
        color="#c9c9c9",
        label=f"untrained, {facts['untrained_length']:.2f}",
    )
    axes.bar_label(bars, [f"{share:.0%}" for share in facts["per_position"]], padding=2)
    axes.set_xticks(list(positions))
    axes.set_ylim(0, 1)
    axes.set_xlabel("drafted position")
    axes.set_ylabel("accepted")
    axes.set_title(
        f"Acceptance by {facts['method']} ({facts['prompts']} prompts, 95%: {facts['low']:.2f} to {facts['high']:.2f})",
        fontsize=10,
    )
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
