"""Leases of devices: one child a device, or several devices a child that trains, over all runs of one host.

On a machine with GPUs an accelerator is a GPU that no other process uses; without one, and for light work, it is a share of
the processor. A lease is a flock on a file of the device, so a killed holder frees it.
"""

import fcntl
import logging
import os
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from errors import UserError
from running.memory import total_bytes

log = logging.getLogger("eyas")
LOSSES = 2  # children that die on a device before it is put aside
_TOLD_AFTER = 10.0  # seconds that a GPU is in use: for a moment, a child of ours that has ended may be


@dataclass(frozen=True)
class Device:
    """A leased device: ``name`` is ``cpu:0`` or ``cuda:3``, ``threads`` the processor threads that go with it.

    ``model`` is a GPU's, with its driver; empty for a processor. ``count`` devices of one child are ``cuda:0,1``; ``threads``
    are then those of each.
    """

    name: str
    threads: int
    model: str = ""
    count: int = 1

    @property
    def environment(self) -> dict[str, str]:
        """What the child must see before it imports anything."""
        gpu = self.name.removeprefix("cuda:") if self.name.startswith("cuda:") else ""
        threads = str(self.threads)
        return {
            "CUDA_VISIBLE_DEVICES": gpu,
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",  # extraction at K2.5's widths: 109 GB reserved for 84 in use
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "GOMP_SPINCOUNT": "0",
            "OMP_WAIT_POLICY": "passive",  # threads that spin cost 25 times on a machine that others use, too
        }

    @property
    def torch_name(self) -> str:
        """The device as the child's torch names it: it sees no GPU but its own."""
        return "cuda" if self.name.startswith("cuda:") else "cpu"


def together(devices: Sequence[Device]) -> Device:
    """Devices of one kind as that of one child."""
    kind = devices[0].name.partition(":")[0]
    numbers = ",".join(device.name.partition(":")[2] for device in devices)
    return replace(devices[0], name=f"{kind}:{numbers}", count=len(devices))


def _nvidia_smi(query: str) -> list[list[str]] | None:
    """The rows of its answer; None where it gives none."""
    try:
        out = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader"], capture_output=True, text=True, timeout=30, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return [[cell.strip() for cell in line.split(",")] for line in out.splitlines() if line.strip()]


def gpus() -> dict[int, tuple[str, str]]:
    """Index -> UUID, and model with driver, of the GPUs that this host has."""
    rows = _nvidia_smi("--query-gpu=index,uuid,driver_version,name") or []
    return {int(row[0]): (row[1], f"{row[3]}, driver {row[2]}") for row in rows if row[0].isdigit()}


@dataclass(frozen=True)
class Memory:
    """Bytes that a pass may count on at most: of the smallest GPU that may be leased, else of the host for all its children.

    ``capability`` is the least compute capability of those GPUs, None without a GPU.
    """

    bytes: int
    children: int
    capability: float | None


def memory(indices: list[int] | None, slots: int | None) -> Memory | None:
    """The memory of the devices that a run would lease, as far as this host tells; takes no lease."""
    chosen = [] if indices == [] else [index for index in gpus() if indices is None or index in indices]
    if not chosen:
        return Memory(total_bytes(), slots or len(os.sched_getaffinity(0)), None)
    rows = {row[0]: row for row in _nvidia_smi("--query-gpu=index,memory.total,compute_cap") or []}
    try:
        sizes = [int(rows[str(index)][1].removesuffix(" MiB")) << 20 for index in chosen]
        return Memory(min(sizes), len(chosen), min(float(rows[str(index)][2]) for index in chosen))
    except (KeyError, ValueError):  # an older driver, or a GPU that has no memory of its own
        return None


class DevicePool:
    """The devices that one flow may lease.

    ``indices`` names the GPUs (None: all of the host, ``[]``: none); ``slots`` is the number of processor shares (None: one a
    core); ``share`` also takes GPUs that other processes use. ``aside`` maps a device that is leased no more to what was last
    said of it.
    """

    def __init__(self, state: Path, indices: list[int] | None, slots: int | None, share: bool) -> None:
        self._folder, self._share = state / "devices", share
        self._told: set[str] = set()
        self._busy_since: dict[str, float] = {}
        self._losses: dict[str, int] = {}
        self.aside: dict[str, str] = {}
        found = {} if indices == [] else gpus()
        self._uuids = {index: uuid for index, (uuid, _) in found.items()}
        unknown = sorted(set(indices or []) - set(found))
        if unknown:
            raise UserError(
                f"running.devices or window.devices names GPU {unknown[0]}, and this host has {sorted(found)}: correct it"
            )
        cores = len(os.sched_getaffinity(0))
        count = slots or cores
        threads = max(1, cores // count)
        self.cpus = [Device(f"cpu:{i}", threads) for i in range(count)]
        chosen = sorted(self._uuids) if indices is None else sorted(indices)
        share_of_cores = max(1, cores // max(1, len(chosen)))
        self.gpus = [Device(f"cuda:{i}", share_of_cores, found[i][1]) for i in chosen]

    def candidates(self, kind: str) -> list[Device]:
        """The devices that serve ``accelerator`` or ``cpu`` work and are not put aside.

        An ``endpoint`` is one lease, so that its load is bounded.
        """
        if kind == "endpoint":
            return [Device("endpoint", 1)]
        devices = self.gpus if kind == "accelerator" and self.gpus else self.cpus
        return [device for device in devices if device.name not in self.aside]

    def lost_child(self, device: Device, why: str) -> None:
        """A child died on a device; one that loses a second is put aside for the rest of the run."""
        self._losses[device.name] = self._losses.get(device.name, 0) + 1
        if self._losses[device.name] == LOSSES:
            self.aside[device.name] = why
            log.warning("%s: a second child died on it, and this run uses it no more: %s", device.name, why)

    def _busy(self) -> dict[str, str]:
        """GPUs that processes of somebody else use (ours hold a lease, which is tried before), and their ids; all, while nobody
        can tell."""
        if self._share or not self.gpus:
            return {}
        rows = _nvidia_smi("--query-compute-apps=gpu_uuid,pid")
        if rows is None:
            unknown = "nvidia-smi does not say which GPUs are in use: none is leased until it does"
            self._tell(f"{unknown}; or set running.share_devices")
            return {device.name: "" for device in self.gpus}
        users = {row[0]: row[1] for row in rows}
        busy = {f"cuda:{index}": users[uuid] for index, uuid in self._uuids.items() if uuid in users}
        self._busy_since = {name: self._busy_since.get(name, time.monotonic()) for name in busy}
        for name, pid in busy.items():
            if time.monotonic() - self._busy_since[name] >= _TOLD_AFTER:
                self._tell(f"{name} is in use by process {pid}: it is leased once it is free; or set running.share_devices")
        return busy

    def _tell(self, words: str) -> None:
        """Once a run."""
        if words not in self._told:
            log.warning(words)
        self._told.add(words)

    def _try(self, device: Device) -> int | None:
        self._folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(self._folder / device.name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return fd

    def try_lease(self, kind: str, rather_not: Collection[str] = ()) -> tuple[Device, int] | None:
        """A free device, one of ``rather_not`` only where no other is, and the descriptor that holds it; or None."""
        for device in sorted(self.candidates(kind), key=lambda device: device.name in rather_not):
            fd = self._try(device)
            if fd is None:
                continue
            if device.name in self._busy():
                os.close(fd)
                continue
            return device, fd
        return None

    @contextmanager
    def lease(self, kind: str, check: Callable[[], None], count: int = 1) -> Iterator[Device]:
        """Wait for ``count`` devices at once and hold none while one is missing; ``check`` may raise while it waits."""
        while True:
            with ExitStack() as held:
                found: list[Device] = []
                while len(found) < count and (leased := self.try_lease(kind)):
                    held.callback(os.close, leased[1])
                    found.append(leased[0])
                if len(found) == count:
                    yield together(found)
                    return
            check()
            time.sleep(0.1)

    def check_count(self, setting: str, count: int) -> None:
        """Refuse a number of accelerators that this host will never have."""
        offered = len(self.candidates("accelerator"))
        if count > offered:
            kind = "GPUs" if self.gpus else "processor shares (running.cpu_slots)"
            raise UserError(f"{setting} is {count}, and this run may lease {offered} {kind}: lower it")
