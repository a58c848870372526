"""The report's section about lineage: what the draft was made of, by which code, and the digests of what came of it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from artifacts.stage import Input, Made, Pending
from artifacts.store import Store
from flows.report_costs import Noted
from flows.report_data import facts_ref
from flows.train_draft import DraftRun
from running.show import PARENT
from tasks.markdown import markdown_table


def lineage(store: Store, records: Sequence[Noted], made: DraftRun) -> str:
    """What went in, what came out, and where the checkpoint lies; ``records`` are those of all nodes."""
    places = [f"`{store.folder(facts_ref(one, 'export').digest)}` ({one.node.name})" for one in made.exports]
    return "\n\n".join(
        [
            "## Lineage",
            markdown_table(["made from", "", "digest"], [*_sources(made)]),
            *sorted({record.trained for record in records if record.trained}),
            *_adopted(records),
            markdown_table(["artifact", "facts", "digest"], [*_artifacts(made)]),
            f"The checkpoint lies in {' and '.join(places)}.",
        ]
    )


def _sources(made: DraftRun) -> Iterator[list[str]]:
    """The verifier, each source of conversations, and the draft that a warm start begins with."""
    roles = (made.verifier.facts or {}).get("roles", {})
    yield ["verifier", made.verifier.name, _digest(made.verifier.input(*roles))]
    chunks: dict[str, list[str]] = {}
    for one in [*made.corpora, *made.legacy]:
        given = one.node.inputs.get("source")  # legacy samples are many inputs
        chunks.setdefault(str(one.node.settings["source"]), []).append(_digest(given))
    for name, digests in sorted(chunks.items()):
        yield ["conversations", name, digests[0] if len(digests) == 1 else f"{len(digests):,} parts"]
    if parent := made.training.node.inputs.get(PARENT):
        yield [PARENT, getattr(parent, "path", None) or "a draft of this store", _digest(parent)]


def _digest(given: Input | Pending | None) -> str:
    return f"`{given.digest}`" if isinstance(given, Input) else ""


def _adopted(records: Sequence[Noted]) -> list[str]:
    """What was not made with the code as it is now, and what was shown for it."""
    groups = Counter((record.stage.replace("_", " "), *record.adopted) for record in records if record.adopted)
    return [f"Adopted on {when}: {count:,} nodes of {stage}, {how}." for (stage, when, how), count in sorted(groups.items())]


def _artifacts(made: DraftRun) -> Iterator[list[str]]:
    outputs: dict[str, tuple[Made, str]] = {
        "vocabulary": (made.vocabulary, "vocabulary"),
        "draft": (made.training, "draft"),
        **{f"checkpoint for {one.node.name}": (one, "export") for one in made.exports},
    }
    for name, (one, output) in outputs.items():
        ref = facts_ref(one, output)
        yield [name, ", ".join(_plain(ref.facts)), f"`{ref.digest}`"]


def _plain(facts: dict[str, Any]) -> list[str]:
    return [f"{name} {value}" for name, value in facts.items() if not isinstance(value, dict)]
