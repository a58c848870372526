"""The plot of a training run's curves. Only the report draws it, so an edit here trains nothing again."""

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.figures import BLUE, GREY, RED, new_figure, png

Columns = Mapping[str, Sequence[float | None]]
_SMOOTHED = 25  # points that a smoothed curve has at least, where there are more steps


def training_plot(curves: Columns, best_step: int) -> bytes:
    """Loss, accuracy by position, replayed acceptance length, learning rate and speed over the steps, as PNG bytes."""
    figure = new_figure(9.6, 5.2)
    axes = figure.subplots(2, 3)
    _smooth(axes[0][0], curves, "loss")
    _accuracy(axes[0][1], curves)
    _replayed(axes[0][2], curves, best_step)
    axes[1][0].plot(curves["step"], curves["lr"], color=BLUE)
    axes[1][0].set_title("learning rate", fontsize=10)
    _smooth(axes[1][1], curves, "grad_norm", "gradient norm")
    _smooth(axes[1][2], curves, "tokens_per_s", "tokens a second")
    for one in axes[1]:
        one.set_xlabel("step")
    for one in (*axes[0][:2], *axes[1]):
        one.set_ylim(bottom=0)
    return png(figure)


def _accuracy(axes: Any, curves: Columns) -> None:
    names = [name for name in curves if name.startswith("acc_")]
    for number, name in enumerate(names):
        steps, values = _means(curves, name)
        axes.plot(steps, values, color=BLUE, alpha=1 - 0.7 * number / max(1, len(names)), label=f"position {number + 1}")
    axes.set_title("chain right up to a position", fontsize=10)
    axes.legend(frameon=False, fontsize=8)


def _replayed(axes: Any, curves: Columns, best_step: int) -> None:
    values = curves.get("replayed_length", [])
    found = [(step, length) for step, length in zip(curves["step"], values, strict=False) if length is not None]
    axes.set_title("replayed acceptance length", fontsize=10)
    if not found:
        axes.text(0.5, 0.5, "nothing was replayed", ha="center", color="grey", transform=axes.transAxes)
        return
    axes.plot(*zip(*found, strict=True), color=BLUE, marker="o", markersize=4)
    best = [(step, length) for step, length in found if step == best_step]
    axes.plot(*zip(*best, strict=True), color=RED, marker="o", linestyle="none", label=f"the draft, step {best_step}")
    axes.set_ylim(bottom=1)  # no length is shorter
    axes.legend(frameon=False, fontsize=8)


def _smooth(axes: Any, curves: Columns, name: str, title: str = "") -> None:
    """The values in grey, and their means in windows."""
    axes.plot(curves["step"], curves[name], color=GREY, linewidth=0.7)
    axes.plot(*_means(curves, name), color=BLUE)
    axes.set_title(title or name, fontsize=10)


def _means(curves: Columns, name: str) -> tuple[list[float], list[float]]:
    """Means of steps and of values in windows of equal length."""
    pairs = [(step, value) for step, value in zip(curves["step"], curves[name], strict=True) if step and value is not None]
    size = max(1, len(pairs) // _SMOOTHED)
    windows = [pairs[i : i + size] for i in range(0, len(pairs), size)]
    return [sum(p[0] for p in w) / len(w) for w in windows], [sum(p[1] for p in w) / len(w) for w in windows]
