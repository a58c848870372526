"""The plot of acceptance as PNG bytes; the same data gives the same bytes."""

from typing import Any

from tasks.figures import BLUE, GREY, new_figure, png


def acceptance_plot(facts: dict[str, Any]) -> bytes:
    """Share of verifier steps in which each drafted position was accepted, the draft beside an untrained one."""
    figure = new_figure()
    axes = figure.subplots()
    positions = range(1, facts["k"] + 1)
    bars = axes.bar(
        [p - 0.2 for p in positions],
        facts["per_position"],
        0.4,
        color=BLUE,
        label=f"trained, {facts['length']:.2f} tokens a step",
    )
    axes.bar(
        [p + 0.2 for p in positions],
        facts["untrained_per_position"],
        0.4,
        color=GREY,
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
    return png(figure)
