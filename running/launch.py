"""The parent's side of a child process: start it on a device, follow its events, end it."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from artifacts.stage import Node
from artifacts.writer import Sealed
from errors import ToldToStop, UserError
from running.devices import Device
from running.job import read_outputs
from running.pace import join
from running.ranks import KILLED

log = logging.getLogger("eyas")


class ChildFailed(Exception):
    """A child ended without doing its work; the message is its last error, or the signal that killed it."""


class ChildKilled(ChildFailed):
    """A child ended by a signal: nothing says that its work cannot be done."""


@dataclass
class Order:
    """One node for a child: its key, where its inputs lie, its scratch folder, the descriptor of its lock.

    ``lost`` names the devices whose children died with it.
    """

    node: Node
    key: str
    paths: dict[str, str]
    scratch: Path
    lock: int
    outputs: dict[str, Sealed] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)


class Stopped(Exception):
    """The run was told to stop: by a cancel, a signal, or an error elsewhere."""


class Children:
    """The living children of a run. After ``stop`` there are none, and none starts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._living: set[subprocess.Popen[bytes]] = set()
        self._stopped: Exception | None = None

    def check(self) -> None:
        """Raise ``Stopped``, or what ``stop`` was given, once the run has been told to stop."""
        if self._stopped:
            raise self._stopped

    @contextmanager
    def started(self, command: list[str], **options: Any) -> Iterator["subprocess.Popen[bytes]"]:
        """Start a child; on leaving it is ended."""
        with self._lock:
            self.check()
            child = subprocess.Popen(command, **options)
            self._living.add(child)
        try:
            yield child
        finally:
            end_child(child)
            with self._lock:
                self._living.discard(child)

    def stop(self, why: Exception | None = None) -> None:
        """End every child at once."""
        with self._lock:
            self._stopped = self._stopped or why or Stopped("the run was stopped")
            for child in self._living:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)


@dataclass(frozen=True)
class Place:
    """Where the children of a run work."""

    snapshot: Path
    run_folder: Path
    workspace: Path
    cache: Path
    closed: tuple[Path, ...]
    children: "Children"


def _environment(place: Place, device: Device) -> dict[str, str]:
    inherited = os.environ.get("PYTHONPATH")
    cache = place.cache
    return {
        # Without bytecode on disk the imports of a training child take twice their 14 s, every time.
        **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        **device.environment,
        "PYTHONPATH": os.pathsep.join([str(place.snapshot), *([inherited] if inherited else [])]),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(cache / "huggingface"),
        "MPLBACKEND": "Agg",
        "MPLCONFIGDIR": str(cache / "matplotlib"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "XDG_CACHE_HOME": str(cache),
        "TOKENIZERS_PARALLELISM": "false",
        "DO_NOT_TRACK": "1",
        "TMPDIR": str(place.workspace),
    }


def _order_file(place: Place, orders: list[Order], device: Device, events: int, pace: dict[str, Any] | None) -> Path:
    first = orders[0].node
    for order in orders:
        order.scratch.mkdir(parents=True, exist_ok=True)
    jobs = [
        {
            "key": order.key,
            "label": order.node.label,
            "settings": order.node.settings,
            "knobs": order.node.knobs,
            "paths": order.paths,
            "digests": {name: source.digest for name, source in order.node.inputs.items() if hasattr(source, "digest")},
            "scratch": str(order.scratch),
        }
        for order in orders
    ]
    content = {
        "module": first.stage.module,
        "entry": first.entry,
        "gathers": first.stage.gathers,
        "device": device.torch_name,
        "threads": device.threads,
        "ranks": device.count,
        "events": events,
        "pace": pace,
        "workspace": str(place.workspace),
        "snapshot": str(place.snapshot),
        "cache": str(place.cache),
        "closed": [str(path) for path in place.closed],
        "jobs": jobs,
    }
    path = place.run_folder / "children" / f"{first.stage.name}-{uuid.uuid4().hex[:8]}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=1))
    return path


def _pace(place: Place, node: Node) -> dict[str, Any] | None:
    """A place among the children of a gathering stage; one that is killed before it begins loses it, too."""
    folder = place.workspace / "pace" / node.stage.name
    return {"folder": str(folder), "place": join(folder)} if node.stage.gathers else None


def run_child(
    place: Place,
    orders: list[Order],
    device: Device,
    on_outputs: Callable[[Order, dict[str, Any]], None],
    on_progress: Callable[[Order, dict[str, Any]], None],
) -> None:
    """Do ``orders`` (of one stage) in one child on ``device``.

    ``on_outputs`` is called with an order as soon as its outputs are sealed. Raises ``UserError`` with the child's own
    sentence, ``ToldToStop`` or ``ChildFailed``; orders whose outputs came before that have been handed over.
    """
    place.cache.mkdir(parents=True, exist_ok=True)
    reading, writing = os.pipe()
    pace = _pace(place, orders[0].node)
    order_path = _order_file(place, orders, device, writing, pace)
    log_path = order_path.with_suffix(".log")
    by_key = {order.key: order for order in orders}
    errors: list[dict[str, Any]] = []
    with open(reading, "rb") as events, open(log_path, "wb") as output, ExitStack() as stack:
        handed_over = [stack.enter_context(open(end, "wb")) for end in (writing, *([pace["place"]] if pace else []))]
        command = [sys.executable, "-P", "-m", "running.ranks" if device.count > 1 else "running.child", str(order_path)]
        child = place.children.started(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(*(end.fileno() for end in handed_over), *(order.lock for order in orders)),
            env=_environment(place, device),
            cwd=place.run_folder,
            start_new_session=True,
        )
        process = stack.enter_context(child)
        for end in handed_over:  # a lock lasts until the last holder is gone: the child
            end.close()
        for line in events:
            event = json.loads(line)
            if event["event"] == "error":
                errors.append(event)
            elif event["event"] == "outputs":
                order = by_key[event["key"]]
                order.outputs = read_outputs(event)
                on_outputs(order, event)
            else:
                on_progress(by_key[event["key"]], event)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
    stopped = next((event for event in errors if event["kind"] == ToldToStop.__name__), None)
    if stopped:
        raise ToldToStop(stopped["message"])  # although it may have been ended while it tidied up
    place.children.check()
    _judge(process.returncode, errors, orders, log_path)


def end_child(child: "subprocess.Popen[bytes]", patience: float = 4.0) -> None:
    """Close the child's pipe, upon which it ends itself, and make sure that it has."""
    if child.stdin:
        child.stdin.close()
    try:
        child.wait(patience)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _judge(code: int, errors: list[dict[str, Any]], orders: list[Order], log_path: Path) -> None:
    """Of several ranks' errors the killed rank's counts, else the first: the others lost their neighbour."""
    missing = [order for order in orders if not order.outputs]
    error = next((event for event in errors if event["kind"] == KILLED), errors[0] if errors else None)
    if error and error["kind"] == KILLED:
        raise ChildKilled(f"{error['message']} of {orders[0].node.label} (its log: {log_path})")
    if error and error["kind"] == "user":
        raise UserError(error["message"])
    if error:
        raise ChildFailed(f"{error['kind']}: {error['message']} (its log: {log_path})")
    if not missing:
        return
    if code < 0:
        name = signal.Signals(-code).name
        raise ChildKilled(f"the child that did {missing[0].node.label} was killed by {name} (its log: {log_path})")
    raise ChildFailed(f"the child that did {missing[0].node.label} ended with code {code} and no result (its log: {log_path})")
