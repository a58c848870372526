"""Runs whose worker is gone: nobody else would tell Prefect that they ended, and what has not ended cannot be retried."""

import json
import time
import urllib.request
from typing import Any

WORKER = "eyas-serve-"  # how the names of our workers begin
_TRIES, _PATIENCE = 5, 60.0  # the latter in seconds
_UNDER_WAY = ("RUNNING", "PENDING", "CANCELLING", "PAUSED")


def crash_lost_runs(api: str) -> list[str]:
    """Say of the runs of our workers that they crashed; the names of those runs. To be called while none of the workers lives.

    A run that was being cancelled is cancelled. A suspended run has left its worker and waits for a person: it stays.
    """
    body = {"flow_runs": {"state": {"type": {"any_": list(_UNDER_WAY)}}}}
    lost = [run for run in _ask(f"{api}/flow_runs/filter", body) if _was_ours(run) and run["state"]["name"] != "Suspended"]
    for run in lost:
        kind = "CANCELLED" if run["state"]["type"] == "CANCELLING" else "CRASHED"
        state = {"type": kind, "name": kind.title(), "message": "its worker was killed; Retry goes on from what was finished"}
        _ask(f"{api}/flow_runs/{run['id']}/set_state", {"state": state, "force": True})
    return [str(run["name"]) for run in lost]


def _was_ours(run: dict[str, Any]) -> bool:
    return str((run["labels"] or {}).get("prefect.worker.name", "")).startswith(WORKER)


def _ask(url: str, body: dict[str, Any]) -> Any:
    """What the server answers; one whose database is locked for a moment is asked again."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    for left in reversed(range(_TRIES)):
        try:
            with urllib.request.urlopen(request, timeout=_PATIENCE) as answer:
                return json.loads(answer.read())
        except OSError:
            if not left:
                raise
            time.sleep(1.0)
    raise AssertionError("a try returns or raises")
