"""Lineage both ways, from records alone: it is known after blobs have been collected, too."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from artifacts.manifest import Ref
from artifacts.records import Record, Records, read_record

Onward = Callable[[Record], Iterable[str]]


@dataclass
class Lineage:
    """What made each artifact and what read it. ``refs`` maps a digest to the reference that a record gives it."""

    makers: dict[str, list[Record]] = field(default_factory=dict)
    readers: dict[str, list[Record]] = field(default_factory=dict)
    refs: dict[str, Ref] = field(default_factory=dict)

    @classmethod
    def of(cls, records: Records) -> "Lineage":
        """Read every record; damaged ones are passed over."""
        lineage = cls()
        for path in records.paths():
            try:
                lineage.add(read_record(path))
            except (FileNotFoundError, ValueError):
                continue
        return lineage

    def add(self, record: Record) -> None:
        """Take one record in."""
        for ref in record.outputs.values():
            self.makers.setdefault(ref.digest, []).append(record)
            self.refs[ref.digest] = ref
        for one in record.lineage.get("rewritten", []):  # what a conversation was taken out of
            self.makers.setdefault(one["from"], []).append(record)
            self.refs.setdefault(one["from"], record.outputs[one["output"]].model_copy(update={"digest": one["from"]}))
        for digest in dict.fromkeys(blobs_read(record)):
            self.readers.setdefault(digest, []).append(record)

    def ancestors(self, digests: Iterable[str], without: tuple[str, ...] = ()) -> list[Record]:
        """The records that led to artifacts, their makers first; each once. Inputs named in ``without`` are not followed."""
        return self._walk(digests, self.makers, lambda record: blobs_read(record, without))

    def descendants(self, digests: Iterable[str]) -> list[Record]:
        """The records that read artifacts, or what was made of them; each once."""
        return self._walk(digests, self.readers, lambda record: (ref.digest for ref in record.outputs.values()))

    def _walk(self, digests: Iterable[str], step: dict[str, list[Record]], onward: Onward) -> list[Record]:
        found: dict[str, Record] = {}
        seen: set[str] = set()
        waiting = list(dict.fromkeys(digests))
        while waiting:
            digest = waiting.pop()
            if digest in seen:
                continue
            seen.add(digest)
            for record in step.get(digest, []):
                if found.setdefault(record.key, record) is record:
                    waiting.extend(onward(record))
        return list(found.values())


def blobs_read(record: Record, without: tuple[str, ...] = ()) -> Iterator[str]:
    """The digests of the artifacts that a node read, but for the inputs named in ``without``."""
    for name, source in record.lineage.get("inputs", {}).items():
        if source.get("blob") and name not in without:
            yield source["blob"]
