"""The champion of a verifier: the draft that retraining compares with and that is served. An alias of this host names it."""

from dataclasses import dataclass
from pathlib import Path

from artifacts.aliases import Alias, AliasMoved
from artifacts.disk import write_atomically
from artifacts.lineage import Lineage
from artifacts.records import Record, read_record
from artifacts.stage import Made, Node
from errors import UserError
from flows.train_draft import obtain_verifier
from running.finding import resolve
from running.host import Host
from running.plan import PlanExecutor
from tasks import training
from tasks.champions import CHAMPION, scope
from tasks.handles import Verifier
from tasks.settings import Settings

_SHARED = ("embed", "norm", "lm_head", "numbers")  # what a draft takes over from its verifier


@dataclass(frozen=True)
class Championship:
    """The champion's alias under one verifier."""

    host: Host
    target: Verifier

    @classmethod
    def of(cls, settings: Settings, host: Host) -> "Championship":
        """That of the settings' verifier, which must be there: nothing is made."""
        return cls(host, obtain_verifier(settings, PlanExecutor(host.walk()), host.memo))

    @property
    def scope(self) -> str:
        """The verifier's name in the state of this host."""
        found = scope(self.target)
        if found is None:
            raise UserError(f"the verifier {self.target.name} has not been made yet: run the flow once")
        return found

    def alias(self) -> Alias | None:
        """The alias with its history; None before the first champion."""
        known = scope(self.target)
        return self.host.aliases.alias(known, CHAMPION) if known else None

    def move(self, digest: str, expected: str | None, because: str) -> str | None:
        """Let ``digest`` be champion if ``expected`` is; else the sentence that says who is."""
        try:
            self.host.aliases.move(self.scope, CHAMPION, digest, expected, because)
        except AliasMoved:
            now = self.alias()
            assert now is not None
            return (
                f"{now.digest[:12]} became champion meanwhile ({now.history[-1].because}), with which this draft was not "
                "compared: start the retraining again"
            )
        return None

    def decline(self, candidate: str, because: str) -> None:
        """Remember that a person kept the champion, so that nobody is asked about this draft again."""
        write_atomically(self.host.state / "declined" / self.scope / candidate, because.encode())

    def declined(self, candidate: str) -> bool:
        """Whether a person has declined a draft."""
        return (self.host.state / "declined" / self.scope / candidate).exists()

    def roll_back(self, because: str) -> Alias:
        """Let the champion before the present one be champion again."""
        now = self.alias()
        if now is None or now.before is None:
            raise UserError(f"{self.target.name} has had no other champion: there is nothing to go back to")
        return self._set(now.before, now.digest, because)

    def put(self, ref: str, because: str) -> Alias:
        """Let the draft that ``ref`` means (a digest, a path, or those of its export) be champion; a person has decided."""
        lineage = Lineage.of(self.host.records)
        digest = resolve(self.host, lineage, ref)
        found = lineage.refs.get(digest)
        if found is not None and found.kind == "export":
            digest = str(lineage.makers[digest][0].lineage["inputs"]["draft"]["blob"])
            found = lineage.refs.get(digest)
        if found is None or found.kind != "draft":
            raise UserError(f"{ref!r} is no draft of the store {self.host.store.root}: give a draft's digest or its export's")
        record = training_record(self.host, digest)
        mine = self.target.input(*_SHARED)
        if record.lineage["inputs"]["verifier"]["digest"] != getattr(mine, "digest", None):
            raise UserError(f"the draft {digest[:12]} was trained for another verifier than {self.target.name}: correct one")
        now = self.alias()
        return self._set(digest, now.digest if now else None, because)

    def _set(self, digest: str, expected: str | None, because: str) -> Alias:
        refused = self.move(digest, expected, because)
        if refused:
            raise UserError(refused)
        moved = self.alias()
        assert moved is not None
        return moved


def training_record(host: Host, draft: str) -> Record:
    """The record of the training that made a draft; ``UserError`` where this store has none."""
    for path in sorted((host.records.root / training.STAGE.name).glob("[!.]*.json")):
        try:
            record = read_record(path)
        except (FileNotFoundError, ValueError):
            continue
        if record.outputs["draft"].digest == draft:
            return record
    raise UserError(f"no training that is recorded in the store {host.store.root} made the draft {draft[:12]}: set another one")


def as_made(host: Host, draft: str) -> Made:
    """A draft of an earlier training, as acceptance takes it."""
    return Made(Node(training.STAGE, f"of {draft[:12]}", {}, {}), training_record(host, draft).outputs)


def checkpoints_of(host: Host, lineage: Lineage, draft: str) -> dict[str, Path]:
    """Where the newest export of a draft for each engine lies."""
    exports = [record for record in lineage.readers.get(draft, []) if record.stage == "export"]
    exports.sort(key=lambda record: str(record.lineage.get("finished", "")))
    refs = [record.outputs["export"] for record in exports]
    return {str(ref.facts["engine"]): host.store.folder(ref.digest) for ref in refs}
