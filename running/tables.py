"""Tables for a terminal: the nodes of a plan or a run, and the summary at a run's end."""

from collections.abc import Sequence
from typing import Any

from running.walk import Step

STAGE_HEADER = ["stage", "ran", "hit", "seconds", "because"]
_SHOWN_REASONS = 3


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; numbers to the right."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        aligned = (c.rjust(w) if c[:1].isdigit() else c.ljust(w) for c, w in zip(cells, widths, strict=True))
        return "  ".join(aligned).rstrip()

    return "\n".join([line(header), "  ".join("-" * w for w in widths), *map(line, rows)])


def reasons(because: list[str]) -> str:
    """The first few reasons, and how many more."""
    more = len(because) - _SHOWN_REASONS
    return ", ".join(because[:_SHOWN_REASONS]) + (f" and {more} more" if more > 0 else "")


def node_table(steps: list[Step]) -> str:
    """What ``eyas plan`` prints: hits are counted by stage, everything else is listed."""
    hits: dict[str, int] = {}
    rows = []
    for step in steps:
        if step.status == "hit":
            hits[step.stage] = hits.get(step.stage, 0) + 1
            continue
        size = f"{step.output_bytes / 1e6:,.0f} MB" if step.output_bytes else ""
        time = f"{step.estimate:,.0f} s" if step.estimate is not None else ""
        rows.append((step.stage, step.node, step.status, time, size, reasons(step.because)))
    rows += [(stage, f"{count} nodes" if count > 1 else "", "hit", "", "", "") for stage, count in hits.items()]
    count = {status: sum(step.status == status for step in steps) for status in ("hit", "run", "may run")}
    total = f"{count['hit']} hit, {count['run']} run, {count['may run']} may run"
    return table(("stage", "node", "status", "estimate", "size", "because"), rows) + f"\n\n{total}"


def summary(result: dict[str, Any]) -> str:
    """What ``eyas run`` prints at its end."""
    judged = acceptance_table(result["acceptance"], result.get("engines", []))
    parts = [judged, stage_table([Step(**node) for node in result["nodes"]])]
    parts.append(f"report      {result['report']}\ncheckpoint  {result['checkpoint']}")
    return "\n\n" + "\n\n".join(parts)


def acceptance_table(acceptance: dict[str, Any], engines: list[dict[str, Any]]) -> str:
    """Acceptance lengths, drafted against untrained, per position, with losslessness; then those in serving engines."""
    rows = []
    for method, facts in acceptance.items():
        rows.append(_acceptance_row(method, "trained", facts, ""))
        rows.append(_acceptance_row(method, "untrained", facts, "untrained_"))
    for facts in engines:
        lossless = f"{facts['equal']} of {facts['prompts']}" if "equal" in facts else ""
        rows.append((facts["engine"], "trained", f"{facts['length']:.2f}", "", _positions(facts["per_position"]), lossless))
    header = ("acceptance", "draft", "length", "95% interval", "accepted at position 1, 2, …", "lossless")
    return table(header, rows)


def _acceptance_row(method: str, draft: str, facts: dict[str, Any], prefix: str) -> tuple[str, ...]:
    interval = "" if prefix else f"{facts['low']:.2f} to {facts['high']:.2f}"
    positions = _positions(facts[f"{prefix}per_position"])
    lossless = f"{facts['lossless']} of {facts['prompts']}" if "lossless" in facts and not prefix else ""
    return (method, draft, f"{facts[f'{prefix}length']:.2f}", interval, positions, lossless)


def _positions(shares: list[float]) -> str:
    return "  ".join(f"{share:.0%}" for share in shares)


def stage_table(steps: list[Step]) -> str:
    """Per stage: how many nodes ran and hit, and the seconds."""
    return table(STAGE_HEADER, stage_rows(steps))


def stage_rows(steps: list[Step]) -> list[list[str]]:
    """A row a stage, in order: name, nodes that ran, nodes that hit, seconds, why they ran."""
    rows = []
    for stage in dict.fromkeys(step.stage for step in steps):
        mine = [step for step in steps if step.stage == stage]
        ran = [step for step in mine if step.status == "run"]
        because = reasons(sorted({reason for step in ran for reason in step.because}))
        seconds = sum(step.seconds or 0.0 for step in ran)
        rows.append([stage, str(len(ran)), str(len(mine) - len(ran)), f"{seconds:.1f}", because])
    return rows
