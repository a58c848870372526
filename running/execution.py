"""Doing one node: under the lock of its key, in a child on a leased device, recorded when its outputs are committed."""

import logging
import os
import platform
import shutil
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from artifacts.records import Record
from artifacts.stage import Input, Node
from running.devices import Device, DevicePool
from running.launch import ChildFailed, Children, Order, Place, run_child
from running.locks import key_lock
from running.progress import ProgressLog
from running.snapshot import project_root
from running.stopping import at_interrupt
from running.timekeeper import Timekeeper, spent
from running.waiting import AT_ONCE, Waiting, at_once
from running.walk import Decision, Walk
from running.window import Deadline

log = logging.getLogger("eyas")


class Execution:
    """Executes decisions of one run; any number of threads may call ``do``."""

    def __init__(
        self, walk: Walk, state: Path, run_folder: Path, pool: DevicePool, workspace: Path, deadline: Deadline | None = None
    ) -> None:
        self.walk, self.state, self.pool = walk, state, pool
        self.time = Timekeeper(walk, deadline or Deadline())
        self.children = Children()
        at_interrupt(self.children.stop)
        self.place = Place(
            snapshot=walk.code,
            run_folder=run_folder,
            workspace=workspace,
            cache=state / "cache",
            closed=(walk.store.root, state),
            children=self.children,
        )
        self._waiting: dict[str, Waiting] = defaultdict(Waiting)
        self._decisions: dict[str, Decision] = {}
        self._started: dict[str, float] = {}
        self._devices: dict[str, Device] = {}
        self._progress = ProgressLog()
        self.on_metrics: Callable[[dict[str, Any]], None] = lambda event: None
        self._commit = _git_commit()

    def do(self, decision: Decision) -> Record:
        """Return the node's record, made now unless another run has made it meanwhile."""
        node, key = decision.node, decision.key
        try:
            return self._do(decision, node, key)
        finally:
            if node.stage.gathers:
                self._waiting[node.stage.name].forget(key)

    def expect(self, decisions: Sequence[Decision]) -> int:
        """Announce nodes that will be done soon, so that devices share them fairly; how many are to be in hand at a time."""
        gathered = [decision for decision in decisions if decision.node.stage.gathers]
        if not gathered:
            return AT_ONCE
        stage, size = gathered[0].node.stage, max(decision.node.knobs.get("shards_per_pass") or 1 for decision in gathered)
        waiting = self._waiting[stage.name]
        waiting.at_once = at_once(len(self.pool.candidates(stage.device)), size)
        waiting.expect(decision.key for decision in gathered)
        return waiting.at_once

    def _do(self, decision: Decision, node: Node, key: str) -> Record:
        with key_lock(self.state, key, node.label, self.children.check) as lock:
            record = self.walk.records.get(node.stage.name, key)
            if record and (not decision.forced or self._whole(record)):
                decision.step.status, decision.step.because = "hit", ["made by another run meanwhile"]
                return record
            self._decisions[key] = decision
            order = Order(node, key, self._paths(decision), self.state / "work" / key, lock)
            if node.stage.gathers:
                self._gathered(order)
            else:
                with self.pool.lease(node.stage.device, lambda: self._check(node), node.devices) as device:
                    self.time.require([order])
                    self._child([order], device)
            shutil.rmtree(order.scratch, ignore_errors=True)
        made = self.walk.records.get(node.stage.name, key)
        if made is None:
            raise RuntimeError(f"{node.label} ended without a record")
        return made

    def _whole(self, record: Record) -> bool:
        return all(self.walk.store.has(ref.digest) for ref in record.outputs.values())

    def _paths(self, decision: Decision) -> dict[str, str]:
        paths = {}
        for name, source in decision.node.inputs.items():
            assert isinstance(source, Input)
            paths[name] = str(self.walk.store.open(source.ref.digest)) if source.ref else str(source.path)
        return paths

    def _gathered(self, order: Order) -> None:
        """Wait until a child has done ``order``: this thread starts it as soon as a device is free and none did before.

        What a child had not done when it died is done by the next one, on another device where one is free.
        """
        waiting = self._waiting[order.node.stage.name]
        waiting.add(order)
        try:
            self._until_ended(order, waiting)
        finally:
            waiting.withdraw(order)
        error = waiting.ended.pop(id(order))
        if error is not None and not order.outputs:
            raise error

    def _until_ended(self, order: Order, waiting: Waiting) -> None:
        kind = order.node.stage.device
        while True:
            self.children.check()
            with ExitStack() as stack:
                with waiting.condition:
                    if id(order) in waiting.ended:
                        return
                    self._check(order.node)
                    first = bool(waiting.queue) and waiting.queue[0] is order  # one of them looks for a device, not all
                    leased = self.pool.try_lease(kind, order.lost) if first and waiting.complete() else None
                    if leased is None:
                        waiting.condition.wait(0.05 if first else 0.5)
                        continue
                    stack.callback(os.close, leased[1])
                    batch = waiting.take(len(self.pool.candidates(kind)))
                self._batch(waiting, batch, leased[0])

    def _batch(self, waiting: Waiting, batch: list[Order], device: Device) -> None:
        error: BaseException | None = None
        try:
            in_time, closed = self.time.in_time(batch)
            for late in batch[len(in_time) :]:
                waiting.end(late, closed)
            if in_time:
                self._child(in_time, device, waiting)
        except ChildFailed as lost:
            log.warning("%s: lost its child; what it had not done goes on elsewhere: %s", device.name, lost)
            waiting.give_back(batch, device.name, lost)
        except BaseException as raised:  # handed to each thread whose node is not done
            error = raised
        for order in batch:
            waiting.end(order, error)
        waiting.leave()

    def _child(self, orders: list[Order], device: Device, waiting: Waiting | None = None) -> None:
        now = time.monotonic()
        for order in orders:
            self._started[order.key], self._devices[order.key] = now, device
        log.info(
            "%s: running on %s%s",
            orders[0].node.label,
            device.name,
            f" with {len(orders) - 1} more" if orders[1:] else "",
        )

        def on_outputs(order: Order, event: dict[str, Any]) -> None:
            self._record(order, event)
            if waiting:
                waiting.end(order, None)
                for later in orders:  # a shard's seconds count from the end of the one before it
                    self._started[later.key] = time.monotonic()

        def on_progress(order: Order, event: dict[str, Any]) -> None:
            if event["event"] == "metrics":
                self.on_metrics(event)
            elif event["event"] == "said":
                log.info("%s: %s", order.node.label, event["text"])
            else:
                self._progress.show(order.node.label, event)

        try:
            with self.time.stoppable(orders):
                run_child(self.place, orders, device, on_outputs, on_progress)
        except ChildFailed as lost:
            if orders[0].node.stage.device == "accelerator" and device.count == 1:
                self.pool.lost_child(device, str(lost))
            raise

    def _check(self, node: Node) -> None:
        """Raise once the run has been told to stop, or no device is left for a node."""
        self.children.check()
        if len(self.pool.candidates(node.stage.device)) < node.devices:
            names, said = ", ".join(self.pool.aside), list(self.pool.aside.values())[-1]
            raise ChildFailed(f"no device is left for {node.label}: two children died on each of {names}; the last: {said}")

    def _record(self, order: Order, event: dict[str, Any]) -> None:
        decision = self._decisions[order.key]
        outputs = {name: self.walk.store.commit(sealed) for name, sealed in order.outputs.items()}
        seconds = spent(order) + time.monotonic() - self._started[order.key]
        record = Record(
            key=order.key,
            stage=order.node.stage.name,
            node=order.node.name,
            parts=decision.parts,
            outputs=outputs,
            lineage={
                "inputs": {name: _input_lineage(source) for name, source in order.node.inputs.items()},
                "seconds": round(seconds, 3),
                "finished": datetime.now(UTC).isoformat(timespec="seconds"),
                "device": self._devices[order.key].name,
                "gpu": self._devices[order.key].model or None,
                "python": platform.python_version(),
                "git_commit": self._commit,
                "tokens": event["tokens"],
                **({"pass": event["measured"]} if event["measured"] else {}),
                "estimated_by": order.node.tokens,
                "reproducible": order.node.stage.reproducible,
            },
        )
        self.walk.records.put(record)
        if self.walk.mirroring:
            self.walk.mirroring.offer(record.stage, record.key)
        decision.step.seconds = round(seconds, 3)
        log.info("%s: done in %.1f s", order.node.label, seconds)


def _input_lineage(source: object) -> dict[str, Any]:
    assert isinstance(source, Input)
    return {"digest": source.digest, "blob": source.ref.digest if source.ref else None, "path": source.path}


def _git_commit() -> str | None:
    try:
        return subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=project_root(), capture_output=True, text=True, check=True, timeout=5
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
