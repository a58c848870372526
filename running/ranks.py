"""A child of several ranks: ``python -P -m running.ranks ORDER.json`` is torchrun for one host, a ``running.child`` a device.

Ranks hold a pipe of this process and end with it, as it ends with its parent. The first that fails ends the others. Each tells
the parent its own error; what a rank that was killed cannot tell is told here.
"""

import json
import os
import signal
import sys
import uuid
from pathlib import Path

from running.guard import die_with_parent
from running.job import json_line

KILLED = "killed"  # the kind of the event that names a killed rank
_PATIENCE = 5  # seconds that ranks have to end when one has failed


def main() -> int:
    """Run the order in the file named by the only argument on its ranks; exit code 0, or 1 when one failed."""
    _ranks_hold_a_pipe_of_ours()
    order = json.loads(Path(sys.argv[1]).read_text())
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # of one host; its own name may resolve to nothing

    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=order["ranks"],
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        shutdown_timeout=_PATIENCE,
    )
    try:
        elastic_launch(config, sys.executable)("-P", "-m", "running.child", sys.argv[1])
    except ChildFailedError as error:
        for rank, failure in sorted(error.failures.items()):
            if failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM:  # by which torchrun ends the others
                message = f"rank {rank} was killed by {signal.Signals(-failure.exitcode).name}"
                os.write(order["events"], json_line({"event": "error", "kind": KILLED, "message": message}))
                break
        return 1
    return 0


def _ranks_hold_a_pipe_of_ours() -> None:
    """Standard input becomes the reading end of a pipe whose other end this process alone holds; what it was is watched."""
    parent = os.dup(0)
    reading, _ = os.pipe()
    os.dup2(reading, 0)
    os.close(reading)
    die_with_parent(parent)


if __name__ == "__main__":
    raise SystemExit(main())
