"""What ``eyas show`` says of an artifact: facts, files, its maker, lineage both ways, and the data that it was made from."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from artifacts.forgotten import Forgotten
from artifacts.lineage import Lineage
from artifacts.manifest import Ref
from artifacts.records import Record
from artifacts.store import BlobMissing
from running.host import Host
from running.tables import table

_SHOWN = 4  # artifacts of one kind under one parent; of the others only the number is said
PARENT = "parent"  # the input of training that a warm start begins with


def node_of(record: Record) -> str:
    """A node as people read it: ``hidden states · shard 3/8``."""
    stage = record.stage.replace("_", " ")
    return f"{stage} · {record.node}" if record.node else stage


def described(host: Host, lineage: Lineage, digest: str) -> str:
    """Kind, facts, files, maker and lineage."""
    ref = lineage.refs.get(digest)
    lines = [f"{_kind(host, ref, digest)} {digest}"]
    lines += [f"alias    {a.name} of verifier {a.verifier[:12]}" for a in host.aliases.all() if a.digest == digest]
    if ref:
        lines.append("facts    " + ", ".join(f"{name} {value}" for name, value in ref.facts.items()))
    lines += _files(host, digest)
    for record in lineage.makers.get(digest, []):
        lines += _maker(record, digest)
    for title, up in (("came from", True), ("led to", False)):
        tree = list(_tree(lineage, digest, up, 1, {digest}))
        lines += ["", title, *(tree or ["  nothing that the records know"])]
    return "\n".join(lines)


def proof_of(adopted: dict[str, Any]) -> str:
    """What an adoption rests on."""
    shown = ", ".join(f"{name} {adopted[name]}" for name in ("relative_error", "agreement", "because") if name in adopted)
    return f"by {adopted['by']} of {len(adopted['proof'])} nodes made again{f' ({shown})' if shown else ''}"


def _kind(host: Host, ref: Ref | None, digest: str) -> str:
    return ref.kind if ref else host.store.manifest(digest).kind


def _files(host: Host, digest: str) -> list[str]:
    try:
        manifest = host.store.manifest(digest)
    except BlobMissing:
        return ["files    not in the store any more"]
    lines = [f"file     {entry.path}, {entry.size:,} bytes" for entry in manifest.files]
    return [*lines, f"size     {manifest.size:,} bytes in {host.store.folder(digest)}"]


def _maker(record: Record, digest: str) -> list[str]:
    known = record.lineage
    when, seconds, device = (known.get(name, "?") for name in ("finished", "seconds", "device"))
    model = f" ({known['gpu']})" if known.get("gpu") else ""
    lines = [
        f"made by  {node_of(record)} on {when} in {seconds} s on {device}{model}",
        f"         key {record.key}, git commit {known.get('git_commit') or 'unknown'}, Python {known.get('python', '?')}",
    ]
    if adopted := known.get("adopted"):
        lines.append(f"         adopted on {adopted['finished']} from key {adopted['from'][:12]} {proof_of(adopted)}")
    for one in known.get("rewritten", []):
        if digest in (one["from"], record.outputs[one["output"]].digest):
            lines.append(f"         rewritten on {one['time']} without {one['rows']} rows that were to be forgotten")
    return lines


def _tree(lineage: Lineage, digest: str, up: bool, depth: int, seen: set[str]) -> Iterator[str]:
    """Artifacts one step away and what lies behind them, indented; each stands where it is met first."""
    groups: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for text, kind, stage, other in _neighbours(lineage, digest, up):
        group = groups.setdefault((kind, stage), [])
        if all(other != known for _, known in group):
            group.append((text, other))
    for (kind, _), group in groups.items():
        for text, other in group[:_SHOWN]:
            if other not in seen:
                seen.add(other)
                yield f"{'  ' * depth}{kind} {other[:12]}{text}"
                yield from _tree(lineage, other, up, depth + 1, seen)
        if group[_SHOWN:]:
            yield f"{'  ' * depth}and {len(group) - _SHOWN:,} more {kind}"


def _neighbours(lineage: Lineage, digest: str, up: bool) -> Iterator[tuple[str, str, str, str]]:
    """Text, kind, stage and digest of what an artifact was made from, or of what was made from it."""
    if not up:
        for record in lineage.readers.get(digest, []):
            for ref in record.outputs.values():
                yield f", {node_of(record)}", ref.kind, record.stage, ref.digest
        return
    for record in lineage.makers.get(digest, []):
        for name, source in record.lineage.get("inputs", {}).items():
            makers = lineage.makers.get(source["blob"] or "", [])
            if makers:
                made = lineage.refs[source["blob"]]
                yield f", {node_of(makers[0])}", made.kind, makers[0].stage, made.digest
            else:
                yield f", {source['path'] or 'no record'}", name.partition(".")[0], "", source["blob"] or source["digest"]


def data_of(host: Host, lineage: Lineage, digest: str) -> str:
    """Sources with counts, dates and exclusions, through the drafts that a warm start began with."""
    sections, waiting, seen = [], [digest], set()
    while waiting:
        one = waiting.pop(0)
        if one in seen:
            continue
        seen.add(one)
        records = lineage.ancestors([one], without=(PARENT,))
        sections.append("\n".join(_generation(host, lineage, one, records)))
        parents = [record.lineage.get("inputs", {}).get(PARENT) for record in records]
        waiting += [parent["blob"] for parent in parents if parent and parent["blob"]]
    return "\n\n".join(sections)


def _generation(host: Host, lineage: Lineage, digest: str, records: list[Record]) -> Iterator[str]:
    dates = [record.lineage.get("finished", "?") for record in lineage.makers.get(digest, [])]
    yield f"{_kind(host, lineage.refs.get(digest), digest)} {digest}, made {', '.join(dates) or 'by nothing that is recorded'}"
    corpora = _corpora(records)
    legacy = [record for record in records if record.stage == "legacy"]
    if not corpora and not legacy:
        yield "no data that the records know"
        return
    header = (
        "source",
        "digest",
        "read on",
        "rows",
        "conversations",
        "samples",
        "duplicates",
        "rejects",
        "forgotten",
        "reasons",
    )
    forgotten = Forgotten(host.store.root)
    if corpora:
        yield table(header, [_source_row(record) for record in corpora])
    for record in sorted(legacy, key=lambda record: record.node):
        yield f"legacy   {record.node}: " + ", ".join(f"{name} {value}" for name, value in _facts(record, "loss_masks").items())
    for record in corpora:
        source = record.lineage["inputs"]["source"]
        yield f"source   {source['digest']} {source['path'] or _made_from(lineage, source)}"
        later = len(forgotten.sources.get(source["digest"], [])) - int(_facts(record, "rejects").get("forgotten", 0))
        if later > 0:
            yield f"         {later} conversations of it were to be forgotten after this was made"
    for record in records:
        for ref in record.outputs.values():
            if ref.kind in ("quarantine", "validation_report"):
                yield f"{ref.kind:17} {ref.digest[:12]}: " + ", ".join(f"{name} {value}" for name, value in ref.facts.items())


def _corpora(records: Iterable[Record]) -> list[Record]:
    """The corpus record of each source: of several that gave the same tokens the newest."""
    newest: dict[str, Record] = {}
    for record in sorted(records, key=lambda record: str(record.lineage.get("finished", ""))):
        if record.stage == "corpus":
            newest[record.lineage["inputs"]["source"]["digest"]] = record
    return sorted(newest.values(), key=lambda record: record.node)


def _facts(record: Record, kind: str) -> dict[str, Any]:
    return next((ref.facts for ref in record.outputs.values() if ref.kind == kind), {})


def _source_row(record: Record) -> tuple[str, ...]:
    facts = _facts(record, "rejects")
    counts = [facts.get(name) for name in ("rows", "conversations", "samples", "duplicates", "rejects", "forgotten")]
    why = ", ".join(f"{reason}: {count}" for reason, count in facts.get("reasons", {}).items())
    source = record.lineage["inputs"]["source"]["digest"]
    when = str(record.lineage.get("finished", "?"))
    return (record.node, source[:12], when, *("" if count is None else f"{count:,}" for count in counts), why)


def _made_from(lineage: Lineage, source: dict[str, Any]) -> str:
    """How a source in the store came to be: the prompts that the verifier answered."""
    for record in lineage.makers.get(source["blob"] or "", []):
        prompts = record.lineage["inputs"].get("prompts", {})
        name = Path(prompts["path"]).name if prompts.get("path") else "?"
        return (
            f"{node_of(record)} on {record.lineage.get('finished', '?')} from {name}, prompts {prompts.get('digest', '?')[:12]}"
        )
    return "of the store"
