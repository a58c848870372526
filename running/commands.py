"""``eyas run`` and ``eyas plan``: they call the flows that deployments call."""

import json
import logging
import os
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from errors import UserError
from running.leftovers import leave_nothing_behind
from running.stopping import stop_on_interrupt
from running.tables import node_table, summary
from running.window import CLOSED, WindowClosed, require_open


def plan(settings: Any, parsed: Namespace) -> int:
    """Print what would run."""
    from flows.budget import require_budget
    from flows.planning import open_host, say_what_is_left_out
    from flows.planning import plan as walk_plan

    host = open_host(settings)
    walk = walk_plan(settings, host)
    say_what_is_left_out(settings, host)
    print(json.dumps([asdict(step) for step in walk.steps], indent=1) if parsed.json else node_table(walk.steps))
    require_budget(settings, walk)
    return 0


def run(settings: Any, parsed: Namespace) -> int:
    """Run the flow and print its summary."""
    from flows.budget import require_budget
    from flows.planning import open_host
    from flows.planning import plan as walk_plan

    planned = walk_plan(settings, open_host(settings))  # a mistake is told before Prefect takes its seconds to start
    require_budget(settings, planned)
    require_open(settings.window, planned)
    start_prefect()
    from flows.served import train_draft_flow

    with telling_no_server():
        result = unless_closed(train_draft_flow(settings))
    print(json.dumps(result["nodes"], indent=1) if parsed.json else summary(result))
    return 0


def start_prefect() -> None:
    """Set what Prefect reads when it is imported, and see to it that the run's processes end with it."""
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "120")
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    os.environ.setdefault("DO_NOT_TRACK", "1")
    os.environ.setdefault("PREFECT_SERVER_LOGGING_LEVEL", "CRITICAL")  # an ephemeral server is cut off at its end, and says so
    logging.getLogger("eyas").info(
        "starting Prefect%s", "" if os.environ.get("PREFECT_API_URL") else " with a server of its own"
    )
    leave_nothing_behind()
    stop_on_interrupt()


def unless_closed(result: Any) -> Any:
    """A flow's result; ``WindowClosed`` where its window closed before it was done."""
    if CLOSED in result:
        raise WindowClosed(result[CLOSED])
    return result


def adopt(settings: Any, parsed: Namespace) -> int:
    """Make some nodes of a stage again and take the others over; say what was shown."""
    from flows.adopting import adopt as take

    leave_nothing_behind()
    stop_on_interrupt()
    for one in take(settings, parsed.stage, parsed.shards, parsed.because):
        shown = ", ".join(f"{name} {value}" for name, value in one.how.items() if name != "because")
        print(f"adopted {one.rest} nodes of {parsed.stage}; {one.proof} made again: {shown}; changed: {', '.join(one.changes)}")
    return 0


@contextmanager
def telling_no_server() -> Iterator[None]:
    """Turn Prefect's account of a server that cannot be reached into one sentence; every other error passes."""
    try:
        yield
    except RuntimeError as error:
        if "Failed to reach API" not in str(error):
            raise
        raise UserError(
            f"{error}: start that Prefect server, correct PREFECT_API_URL, or unset it to run with a server of its own"
        ) from None
