"""The executor of real runs: every node is a Prefect task; our record decides, Prefect shows it.

The key is computed before a task is submitted and the policy only returns it. Prefect's own result is a disposable pointer at
our record: written before a hit is submitted, so that Prefect shows Cached, and removed before a miss is.
"""

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

from artifacts.records import Record
from artifacts.stage import Input, Made, Node
from errors import UserError
from running.execution import Execution
from running.launch import ChildKilled
from running.walk import Decision, Walk, digest_of


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
        self._decisions: dict[str, Decision] = {}
        self._futures: dict[str, PrefectFuture[Any]] = {}

    def run(self, node: Node) -> Made:
        """Do one node."""
        return self.map([node])[0]

    def map(self, nodes: Iterable[Node]) -> list[Made]:
        """Do nodes that do not depend on one another. All are tried; then the first failure is raised."""
        decisions = [self.walk.decide(node) for node in nodes]
        missing = [decision.node for decision in decisions if decision.record is None]
        self.walk.require_room(missing)
        for node in missing:
            self._restore(node.inputs.values())
        futures = [self._submit(decision) for decision in decisions]
        for future in futures:
            future.wait()
        return [self._made(decision, future) for decision, future in zip(decisions, futures, strict=True)]

    def require(self, made: Made) -> None:
        """Make final outputs again whose blobs are gone."""
        assert made.outputs is not None
        self._restore([Input.of(ref) for ref in made.outputs.values()])

    def _restore(self, inputs: Iterable[Any]) -> None:
        """Run the producers of lost blobs, and them alone; each must give the bytes that were lost."""
        for decision in self.walk.lost_inputs(inputs):
            assert decision.record is not None
            lost = {name: ref.digest for name, ref in decision.record.outputs.items()}
            made = self._made(decision, self._submit(decision))
            again = {name: ref.digest for name, ref in (made.outputs or {}).items()}
            if again != lost:
                raise UserError(
                    f"{decision.node.label} was run again for a lost blob and gave other bytes: its record now names "
                    "those, so start the run once more"
                )

    def _submit(self, decision: Decision) -> PrefectFuture[Any]:
        node, hit = decision.node, decision.record is not None and not decision.forced
        self._decisions[decision.key] = decision
        if hit and decision.record:
            self._point_at(decision.record)
        else:
            (self._folder / decision.key).unlink(missing_ok=True)
        upstream = [
            self._futures[source.ref.digest]
            for source in node.inputs.values()
            if isinstance(source, Input) and source.ref and source.ref.digest in self._futures
        ]
        future = self._task(node).submit(key=decision.key, wait_for=list(dict.fromkeys(upstream)))
        if hit and decision.record:
            self._note(decision.record, future)
        return future

    def _task(self, node: Node) -> Any:
        decisions, execution = self._decisions, self.execution

        def run_node(key: str) -> dict[str, Any]:
            return _pointer(execution.do(decisions[key]))

        return Task(
            fn=run_node,
            name=node.stage.title,
            task_run_name=node.label,
            cache_policy=WalkKey(),
            persist_result=True,
            result_storage=self._folder,
            result_serializer="json",
            retries=node.stage.retries,
            retry_condition_fn=_was_killed,
        )

    def _made(self, decision: Decision, future: PrefectFuture[Any]) -> Made:
        future.result()
        record = self.walk.records.get(decision.node.stage.name, decision.key)
        if record is None:
            raise RuntimeError(f"{decision.node.label} completed without a record")
        decision.step.digest = digest_of(record.outputs)
        self.walk.note_outputs(decision, record)
        if decision.record is None:
            decision.record = record
        self._note(record, future)
        return Made(decision.node, record.outputs)

    def _note(self, record: Record, future: PrefectFuture[Any]) -> None:
        for ref in record.outputs.values():
            self._futures[ref.digest] = future

    def _point_at(self, record: Record) -> None:
        if not (self._folder / record.key).exists():
            self._pointers.persist_result_record(self._pointers.create_result_record(_pointer(record), record.key))


def _pointer(record: Record) -> dict[str, Any]:
    return {"key": record.key, "outputs": {name: ref.digest for name, ref in record.outputs.items()}}
