"""The report's sections about data: rows in and out, what was lost, left out and covered, slice by slice."""

import json
import logging
from pathlib import Path
from typing import Any

from artifacts.manifest import digest_file
from artifacts.stage import Made
from artifacts.store import BlobMissing, Store
from flows.gates import lost_tokens, thin_slices
from flows.report_texts import quarantined_texts
from flows.train_draft import DraftRun
from tasks.formats import REPORT
from tasks.markdown import markdown_table
from tasks.settings import Settings

log = logging.getLogger("eyas")
PLOTS = {
    "reasons.png": "samples put aside by reason",
    "norms.png": "norms by state",
    "supervised.png": "supervised tokens a sample",
    "slices.png": "score and agreement by slice",
}
_MOST_ROWS = 40


def facts_ref(made: Made, name: str) -> Any:
    """The reference of an output of a finished node."""
    assert made.outputs is not None
    return made.outputs[name]


def open_whole(store: Store, ref: Any) -> Path | None:
    """The folder of an artifact that a report reads; None where it was collected or is damaged, which wakes nothing."""
    try:
        folder, manifest = store.open(ref.digest), store.manifest(ref.digest)
    except BlobMissing:
        return None
    if any(digest_file(folder / entry.path) != entry.blake3 for entry in manifest.files):
        log.warning("%s %s is damaged and is left out of the report: see `eyas verify --deep`", ref.kind, ref.digest[:12])
        return None
    return folder


def validation_folder(store: Store, checked: Made) -> Path | None:
    """Where the validation report lies, if it does: the facts say the most of it."""
    return open_whole(store, facts_ref(checked, "report"))


def validation_plots(store: Store, checked: Made) -> list[Path]:
    """The plots of the validation report that are there."""
    folder = validation_folder(store, checked)
    return [folder / name for name in PLOTS] if folder else []


def data_sections(settings: Settings, store: Store, made: DraftRun) -> str:
    """Data, validation, vocabulary and slices; with ``report.show_text`` the beginnings of quarantined samples."""
    sections = ["## Data", sources(made), *legacy(made), *lost(made), *checked(made), *vocabulary(settings, made)]
    folder = validation_folder(store, made.checked)
    if folder:
        sections += [f"![{text}]({name})" for name, text in PLOTS.items()]
        sections += slices(json.loads((folder / REPORT).read_text())["slices"], facts_ref(made.vocabulary, "vocabulary").facts)
        if settings.report.show_text:
            sections += quarantined_texts(store, made, folder)
    return "\n\n".join(sections)


def sources(made: DraftRun) -> str:
    """Rows in and out of each source; they add up."""
    rows = []
    for one in made.corpora[:_MOST_ROWS]:
        facts = facts_ref(one, "rejects").facts
        why = ", ".join(f"{reason}: {count}" for reason, count in facts["reasons"].items())
        counts = [facts["rows"], facts.get("conversations", facts["samples"]), facts.get("duplicates", 0), facts["rejects"]]
        rows.append([one.node.name, *(f"{count:,}" for count in [*counts, facts.get("forgotten", 0), facts["samples"]]), why])
    if len(made.corpora) > len(rows):
        rows.append([f"and {len(made.corpora) - len(rows):,} more", *[""] * 7])
    return markdown_table(["source", "rows", "conversations", "duplicates", "rejects", "forgotten", "samples", "reasons"], rows)


def legacy(made: DraftRun) -> list[str]:
    """What came in with states of its own."""
    facts = [facts_ref(one, "masks").facts for one in made.legacy]
    if not facts:
        return []
    samples, tokens, held_out = (sum(one[name] for one in facts) for name in ("samples", "tokens", "held_out_samples"))
    return [f"{samples:,} legacy samples of {tokens:,} tokens came with their states, {held_out:,} of them held out."]


def lost(made: DraftRun) -> list[str]:
    """Supervised tokens that the length limit cost, by the conversation's length; and how well text tokenises back."""
    tokens, supervised = lost_tokens(made.corpora)
    facts = [facts_ref(one, "rejects").facts for one in made.corpora]
    sections = []
    if tokens:
        buckets: dict[str, int] = {}
        for one in facts:
            for bucket, count in one.get("lost_by_length", {}).items():
                buckets[bucket] = buckets.get(bucket, 0) + count
        parts = ", ".join(f"{count:,} in conversations of {bucket} tokens" for bucket, count in buckets.items() if count)
        share = tokens / max(1, supervised)
        sections.append(f"The length limit cost {tokens:,} of {supervised:,} supervised tokens ({share:.2%}): {parts}.")
    trips = [one["round_trip"] for one in facts if one.get("round_trip", 1.0) < 1.0]
    if trips:
        sections.append(f"Re-tokenised text does not always give its tokens back: {min(trips):.2%} do in the worst source.")
    return sections


def checked(made: DraftRun) -> list[str]:
    """What validation found and left out."""
    facts = facts_ref(made.checked, "report").facts
    norms = ", ".join(f"{name} {value:.1f}" for name, value in facts["norms"].items())
    sections = [
        f"{facts['tokens']:,} tokens, {facts['supervised'] / max(1, facts['tokens']):.0%} of them supervised; "
        f"{facts['quarantined']} of {facts['samples']} samples in quarantine{_named(facts['reasons'])}, "
        f"{sum(facts['dropped'].values())} dropped{_named(facts['dropped'])}; median norms {norms}."
    ]
    if facts["scored"]:
        sections.append(
            f"Of {facts['scored']:,} supervised tokens scored under the stored last states, {facts['agreement']:.1%} are the "
            f"verifier's likeliest; their mean log-probability is {facts['score']:.2f}."
        )
    return [*sections, *(f"**Fault: {fault}.**" for fault in facts["faults"])]


def _named(counts: dict[str, int]) -> str:
    return f" ({', '.join(f'{name}: {count}' for name, count in counts.items())})" if counts else ""


def vocabulary(settings: Settings, made: DraftRun) -> list[str]:
    """What the draft vocabulary covers, and where it covers too little."""
    words = facts_ref(made.vocabulary, "vocabulary").facts
    sentence = (
        f"The draft vocabulary of {words['size']:,} (of {words['target_size']:,}) covers {words['coverage']:.1%} of the "
        f"training answers' tokens and {words['held_out_coverage']:.1%} of the held-out ones'."
    )
    return [sentence, *(f"**Warning: {thin}.**" for thin in thin_slices(settings, words))]


def slices(rows: list[dict[str, Any]], words: dict[str, Any]) -> list[str]:
    """A row a slice: counts, score, agreement, what was put aside, and the draft vocabulary's coverage."""
    if not rows:
        return []
    head = ["slice", "samples", "tokens", "supervised", "score", "agreement", "quarantined", "dropped", "covered"]
    cells = [
        [
            row["slice"],
            *(f"{row[name]:,}" for name in ("samples", "tokens", "supervised")),
            "" if row["score"] is None else f"{row['score']:.2f}",
            _percent(row["agreement"]),
            *(f"{row[name]:,}" for name in ("quarantined", "dropped")),
            _percent(words["coverage_by_slice"].get(row["slice"])),
        ]
        for row in rows[:_MOST_ROWS]
    ]
    more = [f"{len(rows) - len(cells):,} more slices are in the validation report."] if len(rows) > len(cells) else []
    return ["### Slices", markdown_table(head, cells), *more]


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"
