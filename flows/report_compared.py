"""The report's section about published drafts that were judged beside ours."""

from typing import Any

from artifacts.store import Store
from flows.report_data import facts_ref, open_whole
from flows.train_draft import DraftRun
from tasks.markdown import markdown_table
from tasks.paired import difference

HEADER = ["draft", "acceptance length", "95% interval", "accepted at 1, 2, …", "ours minus this", "its 95% interval"]


def compared_section(store: Store, made: DraftRun) -> list[str]:
    """A row a draft, ours first; the differences are of the same samples, so that hard ones are hard for both."""
    if not made.compared:
        return []
    ours = facts_ref(made.judged[0], "acceptance")
    rows = [["ours", *_cells(ours.facts), "", ""]]
    mine = open_whole(store, ours)
    for one in made.compared:
        ref = facts_ref(one, "acceptance")
        theirs, told = open_whole(store, ref), ["", ""]
        if mine and theirs:
            found = difference(mine, theirs)
            told = [f"**{found.value:+.2f}**", f"{found.low:+.2f} to {found.high:+.2f}"]
        rows.append([one.node.name, *_cells(ref.facts), *told])
    note = f"By {ours.facts['method']}, paired by sample over {ours.facts['prompts']:,} of them."
    return [f"### Beside published drafts\n\n{markdown_table(HEADER, rows)}\n\n{note}"]


def _cells(facts: dict[str, Any]) -> list[str]:
    positions = ", ".join(f"{share:.0%}" for share in facts["per_position"])
    return [f"**{facts['length']:.2f}**", f"{facts['low']:.2f} to {facts['high']:.2f}", positions]
