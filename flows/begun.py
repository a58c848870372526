"""What every flow that works has around it: its host, the snapshot it works with, devices, its manifest, its window."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flows.planning import open_host, say_what_is_left_out
from flows.windowed import Opened
from running.devices import DevicePool
from running.execution import Execution
from running.host import Host
from running.metric_log import METRICS, MetricLog, check_loggers
from running.prefect_executor import PrefectExecutor
from running.prefect_log import send_log_to_prefect
from running.snapshot import new_run_folder, take_snapshot
from running.walk import Walk
from tasks import training
from tasks.settings import Settings


@dataclass(frozen=True)
class Begun:
    """A run that has begun: what it was told, the devices that it may lease, its folder with the code snapshot."""

    settings: Settings
    host: Host
    pool: DevicePool
    folder: Path
    snapshot: Path

    @property
    def window_log(self) -> Path:
        """Where the window's commands say what they say."""
        return self.folder / "window.log"

    @contextmanager
    def walking(self) -> Iterator[Walk]:
        """A walk with the snapshot; the run's manifest is kept to the end of the block."""
        walk = self.host.walk(self.snapshot)
        with self.host.noted_run(self.folder.name, self.settings.name, walk, self.settings.limit is not None):
            yield walk

    @contextmanager
    def executor(self, walk: Walk, opened: Opened) -> Iterator[PrefectExecutor]:
        """What runs nodes as Prefect tasks; its children end with the block, and what was made is in the mirror then."""
        metrics = MetricLog([*self.settings.running.loggers], self.folder / METRICS, self.settings.name)
        with self.host.store.workspace() as workspace, walk.giving(), metrics:
            execution = Execution(walk, self.host.state, self.folder, self.pool, workspace, opened.deadline)
            execution.on_metrics = metrics.send
            with opened.holding(execution):
                yield PrefectExecutor(walk, execution, self.host.state)


def begin(settings: Settings) -> Begun:
    """Open the host and take the snapshot; a recipe that this host's devices cannot train is refused."""
    send_log_to_prefect()
    host = open_host(settings)
    host.store.sweep()
    folder = new_run_folder(host.state)
    snapshot = take_snapshot(folder)
    pool = DevicePool(host.state, settings.devices, settings.running.cpu_slots, settings.running.share_devices)
    training.check(settings, on_gpu=bool(pool.gpus))
    pool.check_count("running.training_devices", settings.running.training_devices)
    check_loggers([*settings.running.loggers])
    say_what_is_left_out(settings, host)
    return Begun(settings, host, pool, folder, snapshot)
