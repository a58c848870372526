"""The report's section about acceptance in a serving engine."""

from typing import Any

from flows.engine_gates import engine_gap
from flows.report_data import facts_ref
from flows.train_draft import DraftRun
from tasks.markdown import markdown_table

HEADER = ["draft", "engine", "temperature", "acceptance length", "accepted at 1, 2, …", "tokens/s", "without the draft"]


def engine_section(made: DraftRun) -> list[str]:
    """What each engine counted, with what stands apart: other text, other templates, answers that loop."""
    sections = []
    for engine in made.engines:
        facts = facts_ref(engine, "engine_acceptance").facts
        others = [(one.node.name, facts_ref(one, "engine_acceptance").facts) for one in made.rivals]
        table = markdown_table(HEADER, [row for name, found in [("ours", facts), *others] for row in engine_rows(name, found)])
        gaps = [f"{gap:+.2f} from {method}" for method, gap in engine_gap(made.judged, engine).items()]
        notes = [f"Its acceptance length is {' and '.join(gaps)} here." if gaps else "", *engine_notes(facts)]
        sections.append(f"## Acceptance in {facts['engine']}\n\n{table}\n\n{' '.join(filter(None, notes))}")
    return sections


def engine_rows(draft: str, facts: dict[str, Any]) -> list[list[str]]:
    """A row a temperature, greedy first, of what an engine made of a draft."""
    rows = []
    for temperature, found in {"0": facts, **facts["warm"]}.items():
        positions = ", ".join(f"{share:.0%}" for share in found["per_position"])
        plain = f"{facts['plain_tokens_per_s']:.1f}" if temperature == "0" and "plain_tokens_per_s" in facts else ""
        length, speed = f"**{found['length']:.2f}**", f"{found['tokens_per_s']:.1f}"
        rows.append([draft, facts["engine"], temperature, length, positions, speed, plain])
    return rows


def engine_notes(facts: dict[str, Any]) -> list[str]:
    """Sentences about its answers."""
    count, notes = facts["prompts"], [f"{facts['prompts']} prompts, {facts['concurrency']} at once."]
    if "equal" in facts:
        notes.append(
            f"Greedy text equals that without the draft for {facts['equal']} of {count} prompts; asked again without it, the "
            f"engine repeats {facts['repeats_equal']}."
        )
    else:
        notes.append("Greedy text and speed without the draft were not measured: endpoint.plain_url is empty.")
    if "degenerate" not in facts:
        notes.append("It gives no token ids, so that repetition and its template were not looked at.")
        return notes
    if facts["prompts_as_ours"] < count:
        notes.append(f"Its template writes {count - facts['prompts_as_ours']} prompts otherwise than our chat format.")
    if facts["degenerate"]:
        apart = f"; without those the acceptance length is {facts['sound_length']:.2f}" if "sound_length" in facts else ""
        notes.append(f"{facts['degenerate']} answers fall into repetition, which any draft foresees{apart}.")
    return notes
