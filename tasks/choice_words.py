"""What training chose by its device's capability, in words: for the run's log, and for the report."""

from collections.abc import Mapping


def in_words(choices: Mapping[str, str]) -> str:
    """Attention, loss and why, dtype."""
    because = f" ({choices['loss_because']})" if "loss_because" in choices else ""
    return f"attention {choices['attention']}, loss {choices['loss']}{because}, {choices['dtype']}"
