"""``eyas verify``, ``gc``, ``show`` and ``forget``: what a person asks of a store. They print one line a thing."""

from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from artifacts import collect, forgetting
from artifacts import verify as checking
from artifacts.lineage import Lineage
from artifacts.records import Record
from errors import UserError
from running.finding import resolve
from running.host import Host
from running.mirroring import Mirroring
from running.progress import ProgressLog
from running.show import data_of, described, node_of
from running.tables import table

_LISTED = 20  # blobs of a kind that are named one by one


def existing_host(settings: Any) -> Host:
    """The host of a store that is there already; a wrong path makes no empty store."""
    path = Path(settings.store.path)
    if not path.is_dir():
        raise UserError(f"there is no store at {path.absolute()}: correct store.path, or run the flow first")
    return Host.open(settings.store.path, settings.store.state, settings.store.max_bytes, settings.store.mirror)


def _progress(label: str) -> Callable[[int, int], None]:
    """Bytes done and to do as a log line every few seconds."""
    lines = ProgressLog()
    return lambda done, total: lines.show(label, {"done": done / 1e6, "total": total / 1e6, "unit": "MB", "note": ""})


def verify(settings: Any, parsed: Namespace) -> int:
    """Say what is damaged, and with ``--repair`` put it aside."""
    host = existing_host(settings)
    findings = list(_told(checking.verify(host.store, host.state, parsed.deep, _progress("verify"))))
    damaged = [finding for finding in findings if finding.damaged]
    if damaged:
        _say_producers(host, damaged)
    if damaged and parsed.repair:
        with host.store.alone("verify --repair"):
            for finding in damaged:
                aside = checking.repair(host.store, finding)
                print(f"aside    {finding.path} -> {aside}" if aside else f"stays    {finding.path}: restore it from a copy")
    count = sum(1 for _ in host.store.folders()) - sum(finding.what == "folder" for finding in findings)
    how = "sizes and digests" if parsed.deep else "sizes"
    print(f"{count:,} blobs, {host.store.used_bytes():,} bytes, checked by {how}: {_verdict(damaged, parsed.repair)}")
    return 1 if damaged else 0


def _verdict(damaged: list[checking.Finding], repaired: bool) -> str:
    if not damaged:
        return "nothing is damaged"
    return f"{len(damaged)} damaged" + ("" if repaired else "; --repair puts them aside, and their producers alone run again")


def _told(findings: Iterator[checking.Finding]) -> Iterator[checking.Finding]:
    for finding in findings:
        print(f"{'damaged' if finding.damaged else 'left':8} {finding.what} {finding.path}: {finding.why}", flush=True)
        yield finding


def _say_producers(host: Host, damaged: list[checking.Finding]) -> None:
    lineage = Lineage.of(host.records)
    for finding in damaged:
        for record in lineage.makers.get(finding.digest or "", [])[:1]:
            again = "which can make it again" if record.reproducible else "which cannot make it again bit for bit: restore it"
            print(f"made by  {node_of(record)}, {again} ({(finding.digest or '')[:12]})")


def gc(settings: Any, parsed: Namespace) -> int:
    """Say what may go, and with ``--yes`` remove it."""
    host = existing_host(settings)
    if parsed.keep_runs < 0:
        raise UserError(f"--keep-runs {parsed.keep_runs} is no number of runs: give 0 or more")
    with host.store.alone("gc"):
        runs, aliases = host.runs.roots(parsed.keep_runs), host.aliases.all()
        if not runs and not aliases:
            raise UserError(
                f"no run and no alias names anything in the store {host.store.root}, so all of it would go: run the flow once, "
                "or give --keep-runs 1 or more"
            )
        lineage = Lineage.of(host.records)
        keep = collect.live(lineage, collect.served(lineage, [alias.digest for alias in aliases]), runs)
        chosen = collect.collection(host.store, keep)
        freed = chosen.freed
        _say_collection(chosen)
        print(f"\nroots: {len(aliases)} aliases, {len(runs)} recent runs and what they need that cannot be made again")
        if parsed.yes:
            collect.collect(host.store, chosen, _progress("gc"))
            host.remove_old_runs(max(1, parsed.keep_runs))
            print(f"{freed:,} bytes freed")
        else:
            print(f"{freed:,} bytes would be freed: start it again with --yes to remove them")
    return 0


def _say_collection(chosen: collect.Collection) -> None:
    for kind, *_ in chosen.by_kind():
        mine = [blob for blob in chosen.gone if blob.kind == kind]
        for blob in mine[:_LISTED]:
            print(f"goes     {blob.kind} {blob.digest[:12]}, {blob.size:,} bytes")
        if mine[_LISTED:]:
            print(f"goes     {len(mine) - _LISTED:,} more {kind}")
    for path in (*chosen.stray, *chosen.damaged):
        print(f"goes     {path}, which is no blob")
    rows = [(kind, *(f"{number:,}" for number in numbers)) for kind, *numbers in chosen.by_kind()]
    print()
    print(table(("kind", "stay", "bytes", "go", "bytes"), rows))


def show(settings: Any, parsed: Namespace) -> int:
    """Print what is known of an artifact."""
    host = existing_host(settings)
    lineage = Lineage.of(host.records)
    digest = resolve(host, lineage, parsed.ref)
    print(data_of(host, lineage, digest) if parsed.data else described(host, lineage, digest))
    return 0


def forget(settings: Any, parsed: Namespace) -> int:
    """Say what holds some conversations, and with ``--yes`` remove it."""
    host = existing_host(settings)
    with host.store.alone("forget"):
        lineage = _lineage_of_all(host)
        found = forgetting.Search(host.store, lineage, parsed.ids).run()
        if found.unknown:
            raise UserError(f"no sample in the store {host.store.root} has the id {found.unknown[0]!r}: correct it")
        _say_forgetting(found)
        if found.nothing:
            print("nothing in the store holds it any more")
            if host.mirroring and parsed.yes:  # a command that was killed may have told the mirror less than it did here
                _tell_mirror(
                    host, host.mirroring, [r for rs in lineage.makers.values() for r in rs if "rewritten" in r.lineage]
                )
            return 0
        _say_elsewhere(host, found)
        if host.mirroring:
            print(f"mirror   {host.mirroring.mirror.name} loses its copies, too; stores of other machines do not")
        if parsed.yes:
            _forget(host, lineage, found)
            print("forgotten; the next run makes the shards above again without it, and nothing else")
        else:
            print("nothing was changed: start it again with --yes to forget it")
    return 0


def _lineage_of_all(host: Host) -> Lineage:
    """All that is recorded here and in the mirror; of what lies there alone, the blobs that may name an id are brought."""
    if host.mirroring:
        host.mirroring.bring_records()
    lineage = Lineage.of(host.records)
    if host.mirroring:
        host.mirroring.bring(forgetting.to_look_into(host.store, lineage))
    return lineage


def _forget(host: Host, lineage: Lineage, found: forgetting.Forgetting) -> None:
    """The mirror's copies go first: while they can be had, the blobs here say which they are."""
    if host.mirroring:
        host.mirroring.forget([*found.copies, *found.blobs, *found.absent])
    rewritten = forgetting.forget(host.store, host.records, lineage, found)
    if host.mirroring:
        _tell_mirror(host, host.mirroring, rewritten)


def _tell_mirror(host: Host, mirroring: Mirroring, rewritten: list[Record]) -> None:
    """Send the list of what is left out, and the records that name copies without it."""
    mirroring.give_forgotten(host.forgotten)
    with mirroring.giving():
        for stage, key in dict.fromkeys((record.stage, record.key) for record in rewritten):
            mirroring.offer(stage, key)


def _say_elsewhere(host: Host, found: forgetting.Forgetting) -> None:
    """What is not rewritten and stays."""
    for path in sorted(found.files):
        print(f"file     {path} is yours and stays as it is: the rows are left out when it is read")
    marks = [mark.strip(b'"') for name in found.ids for mark in forgetting.marks(name)]  # in prose they have no quotes
    for report in sorted((host.store.root / "reports").rglob("report.*")):
        data = report.read_bytes()
        if any(mark in data for mark in marks):
            print(f"report   {report} names it and stays: remove it where it shows text")


def _say_forgetting(found: forgetting.Forgetting) -> None:
    for name in found.ids:
        print(f"sample   {name}: {found.samples.get(name, 0)} in shards")
    for blob in sorted(found.blobs.values(), key=lambda blob: (blob.kind, blob.digest)):
        print(f"goes     {blob.kind} {blob.digest[:12]}, {blob.size:,} bytes")
    for blob, rows in found.copies.values():
        print(f"rewrites {blob.kind} {blob.digest[:12]} without {len(rows)} rows")
    for record, ref in found.drafts:
        print(
            f"draft    {ref.digest[:12]} of {record.lineage.get('finished', '?')} learned from data with it and stays until gc"
        )
    if found.twins:
        print(f"twins    {found.twins} samples of other ids have the same text and stay")
