"""How our plots look, and their bytes: the same data gives the same PNG."""

import io
from typing import Any

BLUE, GREY, RED = "#2f6f9f", "#c9c9c9", "#b4442f"


def new_figure(width: float = 6.4, height: float = 3.2) -> Any:
    """A matplotlib figure of so many inches, without pyplot's global state."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=110, layout="constrained")


def png(figure: Any) -> bytes:
    """The figure's PNG, without the frame's upper and right line and without the date or the library's name in it."""
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
