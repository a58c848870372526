"""What a run does with its mirror. No fault of a mirror stops a run: it is said once, and the run goes on without it."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import TypeVar

from artifacts.forgotten import Forgotten
from artifacts.manifest import Manifest
from artifacts.mirror import Mirror
from artifacts.mirror_files import Damaged, Interrupted
from artifacts.records import Record, Records
from artifacts.store import BlobMissing, Store
from errors import UserError

log = logging.getLogger("eyas")
_SENDERS, _FETCHERS = 4, 8
_PAUSE = 300.0  # seconds that a mirror which failed is left alone
_T = TypeVar("_T")
_failures = threading.Lock()
_failed_at: dict[str, float] = {}  # by the mirror's name: a process opens a mirror for its plan and again for its run


class Mirroring:
    """The mirror of one store, for the plan and the run of one process; any thread may call it."""

    def __init__(self, mirror: Mirror, store: Store, records: Records, max_bytes: int | None) -> None:
        self.mirror, self.store, self._records, self._max_bytes = mirror, store, records, max_bytes
        self._lock = threading.Lock()
        self._keys: dict[str, set[str]] = {}
        self._there: set[str] = set()
        self._senders: ThreadPoolExecutor | None = None
        self.counts = {"given": 0, "there": 0, "missed": 0}

    def records(self, stage: str, keys: Iterable[str]) -> dict[str, Record]:
        """Those records of a stage that the mirror has; from here on the store has them too."""
        wanted = self._listed(stage).intersection(keys)
        found: dict[str, Record] = {}

        def fetch() -> None:
            for got in self.mirror.records(stage, wanted, self._records):
                if isinstance(got, Damaged):
                    log.warning("mirror: %s, so it counts as absent", got)
                elif got.stage == stage and got.key in wanted:
                    found[got.key] = got

        if wanted:
            self._ask(fetch, None)
        return found

    def bring_records(self) -> None:
        """Bring every record that the mirror has and the store lacks. ``UserError`` where it cannot be asked."""
        try:
            for stage in self.mirror.stages():
                missing = {key for key in self.mirror.keys(stage) if self._records.get(stage, key) is None}
                for got in self.mirror.records(stage, missing, self._records):
                    if isinstance(got, Damaged):
                        log.warning("mirror: %s, so it counts as absent", got)
        except Exception as error:
            raise UserError(
                f"the mirror {self.mirror.name} cannot be read ({_told(error)}), and what it has may hold a conversation that "
                "is to be forgotten: start it again when the mirror can be reached"
            ) from None

    def there(self, digests: set[str]) -> set[str]:
        """Which blobs the mirror has, for a plan: nothing is brought."""
        unknown = digests - self._there
        if unknown:
            self._there |= self._ask(lambda: self.mirror.there(unknown), set())
        return digests & self._there

    def bring(self, digests: set[str]) -> None:
        """Bring blobs into the store. What is not there, or is damaged, is left to the producer; damage is said."""
        nothing: dict[str, Manifest] = {}
        manifests = self._ask(lambda: self.mirror.manifests(digests), nothing)
        for digest in (digests & self.mirror.suspect) - set(manifests):
            log.warning("mirror: the manifest of %s is damaged there: its producer runs again", digest[:12])
        if not manifests:
            return
        size = sum(manifest.size for manifest in manifests.values())
        self.store.require_room(size, self._max_bytes, f"{len(manifests)} artifacts that would be brought from the mirror")
        log.info("mirror: bringing %d artifacts, %.1f MB", len(manifests), size / 1e6)
        started = time.monotonic()

        def one(digest: str) -> None:
            try:
                self._ask(lambda: self.mirror.fetch_blob(self.store, digest, manifests[digest]), None)
            except Damaged as error:
                log.warning("mirror: %s: its producer runs again", error)

        with ThreadPoolExecutor(_FETCHERS, "mirror") as pool:
            for done in [pool.submit(copy_context().run, one, digest) for digest in manifests]:
                done.result()
        log.info("mirror: %.1f s for that", time.monotonic() - started)

    def take_forgotten(self, forgotten: Forgotten) -> None:
        """Leave out here what was forgotten on another machine."""
        nothing: dict[str, list[str]] = {}
        try:
            forgotten.merge(self._ask(self.mirror.forgotten, nothing))
        except Damaged as error:
            raise UserError(
                f"{error}, and without it forgotten conversations would come back: run `eyas push` where they were forgotten"
            ) from None

    def forget(self, digests: Iterable[str]) -> None:
        """Remove blobs there. ``UserError`` where that fails: nothing is to be forgotten here while the copies stay."""
        try:
            self.mirror.remove(digests)
        except Exception as error:
            raise UserError(
                f"the copies in {self.mirror.name} cannot be removed ({_told(error)}), so nothing was forgotten: "
                "start it again when the mirror can be reached"
            ) from None

    def give_forgotten(self, forgotten: Forgotten) -> None:
        """Send the list of what is left out."""
        if forgotten.sources:
            self._ask(lambda: self.mirror.send_forgotten(forgotten.path.read_bytes()), None)

    def sizes(self) -> dict[str, int]:
        """Bytes of every file of every blob there, by path."""
        nothing: dict[str, int] = {}
        return self._ask(self.mirror.sizes, nothing)

    @contextmanager
    def giving(self) -> Iterator[None]:
        """Send in the background what is offered inside; at the end all of it has been sent, or counted as missed."""
        self._senders = ThreadPoolExecutor(_SENDERS, "mirror")
        try:
            yield
        except BaseException:
            self.mirror.carrier.stopped.set()
            self._senders.shutdown(cancel_futures=True)
            raise
        self._senders.shutdown()
        if self.counts["given"] or self.counts["missed"]:
            log.info("mirror: %(given)d nodes given, %(missed)d not (the next run or `eyas push` gives them)", self.counts)

    def offer(self, stage: str, key: str, sizes: dict[str, int] | None = None) -> None:
        """A node whose outputs the mirror may lack."""
        assert self._senders is not None
        with suppress(RuntimeError):  # the run is ending and gives nothing more
            self._senders.submit(copy_context().run, self._send, stage, key, sizes)  # Prefect finds a log line's run in it

    def offer_unlisted(self, hits: Iterable[tuple[str, str]]) -> None:
        """Nodes found in the store: those that the mirror has no record of, by earlier failures or an earlier setting."""
        for stage, key in hits:
            if key not in self._listed(stage) and not self._paused():
                self.offer(stage, key)

    def _send(self, stage: str, key: str, sizes: dict[str, int] | None) -> None:
        record = self._records.get(stage, key)
        outcome = "missed" if record is None else self._ask(lambda: self._send_node(record, sizes), "missed")
        with self._lock:
            self.counts[outcome] += 1

    def _send_node(self, record: Record, sizes: dict[str, int] | None) -> str:
        sent = 0
        for ref in record.outputs.values():
            try:
                sent += self.mirror.send_blob(self.store, ref.digest, sizes)
            except BlobMissing:
                continue  # collected: a record outlives its blobs there as here
            except Damaged as error:
                log.warning("mirror: %s: %s · %s was not given", error, record.stage, record.node)
                return "missed"
        if sizes is not None and not sent and record.key in self._listed(record.stage):
            return "there"
        self.mirror.send_record(record)
        return "given"

    def _listed(self, stage: str) -> set[str]:
        """The keys that the mirror has of a stage, as it was when this process first asked."""
        if stage not in self._keys:
            found = self._ask(lambda: self.mirror.keys(stage), None)
            if found is None:
                return set()
            self._keys[stage] = found
        return self._keys[stage]

    def _paused(self) -> bool:
        return time.monotonic() - _failed_at.get(self.mirror.name, -_PAUSE) < _PAUSE

    def _ask(self, what: Callable[[], _T], otherwise: _T) -> _T:
        """``what()``; ``otherwise`` where the mirror fails, which is said once and then left alone for a while."""
        if self._paused():
            return otherwise
        try:
            answer = what()
        except (Damaged, BlobMissing, UserError):
            raise
        except Interrupted:
            return otherwise
        except Exception as error:  # any backend, any exception
            self._say(error)
            return otherwise
        with _failures:
            _failed_at.pop(self.mirror.name, None)
        return answer

    def _say(self, error: Exception) -> None:
        with _failures:
            said, _failed_at[self.mirror.name] = self.mirror.name in _failed_at, time.monotonic()
        log.log(
            logging.INFO if said else logging.WARNING,
            "mirror: %s cannot be used (%s): the run goes on without it, the next one or `eyas push` gives what it lacks",
            self.mirror.name,
            _told(error),
        )


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
