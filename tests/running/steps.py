"""A gathering stage for tests of how children are lost: what a child does is said by files in its workspace.

Copied into a snapshot as ``tasks/steps.py``.
"""

import os
import signal
import time
from collections.abc import Sequence

from artifacts.stage import Stage
from errors import UserError
from running.job import Job

STAGE = Stage("hidden_states", module="tasks.steps", libraries=(), device="accelerator", gathers=True)


def compute(jobs: Sequence[Job]) -> None:
    """Do each job once there is a file ``go-<its number>``; every start is noted."""
    workspace = jobs[0].workspace
    (workspace / f"child-{os.getpid()}").write_text(" ".join(str(job.settings["number"]) for job in jobs))
    for job in jobs:
        while not (workspace / f"go-{job.settings['number']}").exists():
            time.sleep(0.01)
        match job.settings["fault"]:
            case "user":
                raise UserError("the file is not good: mend it")
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "once" if len(list(workspace.glob("child-*"))) == 1:
                raise RuntimeError("the device does not answer")
        writer = job.writer("token_shard")
        writer.write("file", str(job.settings["number"]).encode())
        job.finish({"shard": writer.seal(tokens=1, samples=1)}, tokens=1, measured={"tokens": 1})
