"""The executor of real runs: every node is a Prefect task; our record decides, Prefect shows it.

The key is computed before a task is submitted and the policy only returns it. Prefect's own result is a disposable pointer at
our record: written before a hit is submitted, so that Prefect shows Cached, and removed before a miss is.
"""

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prefect import Task
from prefect.cache_policies import CachePolicy
from prefect.context import TaskRunContext
from prefect.filesystems import LocalFileSystem
from prefect.futures import PrefectFuture
from prefect.results import ResultStore
from prefect.serializers import JSONSerializer
from prefect.states import Cancelled

from artifacts.manifest import canonical_json, digest_bytes
from artifacts.records import Record
from artifacts.stage import Input, Made, Node, Stage
from errors import UserError
from running.execution import Execution
from running.launch import ChildKilled
from running.walk import Decision, Walk, digest_of
from running.window import WindowClosed

_SHOWN = 48  # hits of one map, and edges of one task, that Prefect shows one by one


class WalkKey(CachePolicy):
    """Returns the key that the walk has computed."""

    def compute_key(
        self, task_ctx: TaskRunContext, inputs: dict[str, Any], flow_parameters: dict[str, Any], **kwargs: Any
    ) -> str | None:
        """The task's ``key`` parameter."""
        return str(inputs["key"])


def _was_killed(task: Any, task_run: Any, state: Any) -> bool:
    """Only a killed child is tried again: an error that the child could name would come again."""
    try:
        state.result()
    except ChildKilled:
        return True
    except BaseException:
        return False
    return False


class PrefectExecutor:
    """Submits nodes as Prefect tasks; to be used inside a flow run."""

    def __init__(self, walk: Walk, execution: Execution, state: Path) -> None:
        self.walk, self.execution = walk, execution
        self._storage = LocalFileSystem(basepath=str(state / "prefect"))
        self._pointers = ResultStore(result_storage=self._storage, serializer=JSONSerializer(), cache_result_in_memory=False)
        self._folder = state / "prefect"
        self._tasks: dict[Stage, Any] = {}
        self._decisions: dict[str, Decision] = {}
        self._futures: dict[str, PrefectFuture[Any]] = {}
        self._closed: dict[str, WindowClosed] = {}

    def run(self, node: Node) -> Made:
        """Do one node."""
        return self.map([node])[0]

    def map(self, nodes: Iterable[Node]) -> list[Made]:
        """Do nodes that do not depend on one another. All are tried; then the first failure is raised."""
        decisions = self.walk.decide(nodes)
        self.walk.steps += [decision.step for decision in decisions]
        missing = [decision for decision in decisions if decision.record is None]
        self.walk.require_room(decision.node for decision in missing)
        self._restore(source for decision in missing for source in decision.node.inputs.values())
        shown = self._show_hits([decision for decision in decisions if decision.record is not None], len(decisions))
        self._do(missing)
        for future in shown:
            future.result()  # before anything can force one of them
        return [Made(decision.node, _record_of(decision).outputs) for decision in decisions]

    def require(self, made: Made) -> None:
        """Make final outputs again whose blobs are gone."""
        assert made.outputs is not None
        self._restore([Input.of(ref) for ref in made.outputs.values()])

    def _restore(self, inputs: Iterable[Any]) -> None:
        """Bring lost blobs from the mirror, else run their producers alone; each must give the bytes that were lost."""
        for wave in self.walk.lost_inputs(inputs, bring=True):
            lost = [_digests(_record_of(decision)) for decision in wave]
            self._do(wave)
            for decision, before in zip(wave, lost, strict=True):
                if _digests(_record_of(decision)) != before:
                    raise UserError(
                        f"{decision.node.label} was run again for a lost blob and gave other bytes: its record now names "
                        "those, so start the run once more"
                    )

    def _show_hits(self, hits: list[Decision], count: int) -> list[PrefectFuture[Any]]:
        """Hits as cached tasks; more of a stage than a person would look at as one, since Prefect takes 5 ms for each."""
        if self.walk.mirroring:
            self.walk.mirroring.offer_unlisted((hit.node.stage.name, hit.key) for hit in hits)
        if len(hits) <= _SHOWN:
            return [self._submit(hit) for hit in hits]
        key = digest_bytes(canonical_json([hit.key for hit in hits]))
        shown = {"key": key, "hits": len(hits)}
        self._point_at(key, shown)
        task = self._task(hits[0].node.stage)
        label = f"{hits[0].node.stage.title} · {len(hits):,} of {count:,} hit"
        future = task.submit(key=key, label=label, wait_for=self._upstream(hits))
        for hit in hits:
            self._note(_record_of(hit), future)
        return [future]

    def _do(self, decisions: list[Decision]) -> None:
        """Submit nodes so that few wait inside Prefect at a time, and see that each has left a record."""
        slots = threading.Semaphore(self.execution.expect(decisions))
        futures = []
        for decision in decisions:
            slots.acquire()
            future = self._submit(decision)
            future.add_done_callback(lambda _: slots.release())
            futures.append(future)
        for future in futures:
            future.wait()
        for decision, future in zip(decisions, futures, strict=True):
            if decision.key in self._closed:
                (self._folder / decision.key).unlink(missing_ok=True)
                continue
            future.result()
            record = self.walk.records.get(decision.node.stage.name, decision.key)
            if record is None:
                raise RuntimeError(f"{decision.node.label} completed without a record")
            decision.record, decision.step.digest = record, digest_of(record.outputs)
            self.walk.note_outputs(decision, record)
            self._note(record, future)
        for closed in self._closed.values():
            raise closed

    def _submit(self, decision: Decision) -> PrefectFuture[Any]:
        self._decisions[decision.key] = decision
        hit = decision.record if not decision.forced else None
        if hit:
            self._point_at(decision.key, _pointer(hit))
        else:
            (self._folder / decision.key).unlink(missing_ok=True)
        task = self._task(decision.node.stage)
        future = task.submit(key=decision.key, label=decision.node.label, wait_for=self._upstream([decision]))
        if hit:
            self._note(hit, future)
        return future

    def _upstream(self, decisions: list[Decision]) -> list[PrefectFuture[Any]]:
        """The tasks that made what these nodes read, for Prefect's graph; no more than a person would look at."""
        found: dict[PrefectFuture[Any], None] = {}
        for source in (source for decision in decisions for source in decision.node.inputs.values()):
            if isinstance(source, Input) and source.ref and (future := self._futures.get(source.ref.digest)):
                found[future] = None
                if len(found) == _SHOWN:
                    break
        return list(found)

    def _task(self, stage: Stage) -> Any:
        if stage not in self._tasks:
            decisions, execution = self._decisions, self.execution

            def run_node(key: str, label: str) -> Any:
                try:
                    return _pointer(execution.do(decisions[key]))
                except WindowClosed as closed:  # no failure: the next window does it
                    self._closed[key] = closed
                    return Cancelled(name="Window closed", message=str(closed))

            self._tasks[stage] = Task(
                fn=run_node,
                name=stage.title,
                task_run_name="{label}",
                cache_policy=WalkKey(),
                persist_result=True,
                result_storage=self._folder,
                result_serializer="json",
                retries=stage.retries,
                retry_condition_fn=_was_killed,
            )
        return self._tasks[stage]

    def _note(self, record: Record, future: PrefectFuture[Any]) -> None:
        for ref in record.outputs.values():
            self._futures[ref.digest] = future

    def _point_at(self, key: str, shown: dict[str, Any]) -> None:
        if not (self._folder / key).exists():
            self._pointers.persist_result_record(self._pointers.create_result_record(shown, key))


def _record_of(decision: Decision) -> Record:
    assert decision.record is not None
    return decision.record


def _pointer(record: Record) -> dict[str, Any]:
    return {"key": record.key, "outputs": _digests(record)}


def _digests(record: Record) -> dict[str, str]:
    return {name: ref.digest for name, ref in record.outputs.items()}
