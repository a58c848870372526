"""``eyas retrain``, ``synthesize`` and ``champion``: they call the flows that deployments call."""

import json
from argparse import Namespace
from typing import Any

from artifacts.lineage import Lineage
from errors import UserError
from running.commands import start_prefect, telling_no_server, unless_closed
from running.store_commands import existing_host
from running.tables import table
from running.window import require_open


def retrain(settings: Any, parsed: Namespace) -> int:
    """Retrain, and say how it ended; a draft that waits for a person is named with the command that promotes it."""
    from flows.idle import nothing_new
    from flows.planning import open_host

    idle = None if parsed.again else nothing_new(settings, open_host(settings))  # told before Prefect takes its seconds
    if idle and idle.verdict != "waits":
        result: dict[str, Any] = {"verdict": idle.verdict, "because": idle.because, "left_out": idle.left_out, "nodes": []}
    else:
        start_prefect()
        from flows.served_retrain import retrain_flow

        with telling_no_server():
            result = unless_closed(retrain_flow(settings, again=parsed.again))
    if parsed.json:
        print(json.dumps(result, indent=1))
        return 0
    for line in result["left_out"]:
        print(f"left out {line}")
    named = f" {result['candidate'][:12]}" if result.get("candidate") else ""
    print(f"{result['verdict']}{named}: {'; '.join(result['because'])}")
    for name in ("report", "checkpoint"):
        if name in result:
            print(f"{name:8} {result[name]}")
    if result["verdict"] == "waits":
        print(f"promote  eyas champion {parsed.settings} --to {result['candidate'][:12]} --because WHY")
    return 0


def synthesize(settings: Any, parsed: Namespace) -> int:
    """Answer the prompts, and say where the answers landed."""
    from flows.budget import require_budget
    from flows.planning import open_host
    from flows.synthesize import plan_answers

    planned = plan_answers(settings, open_host(settings))
    require_budget(settings, planned)
    require_open(settings.window, planned)
    start_prefect()
    from flows.served_synthesize import synthesize_flow

    with telling_no_server():
        landed = unless_closed(synthesize_flow(settings, parsed.into))
    print(f"{landed['count']:,} conversations in {landed['path']}, {len(landed['files'])} new files of them")
    return 0


def champion(settings: Any, parsed: Namespace) -> int:
    """Say who is champion, go back to the one before, or set one."""
    from flows.champions import Championship, checkpoints_of

    host = existing_host(settings)
    throne = Championship.of(settings, host)
    if parsed.rollback and parsed.to:
        raise UserError("--rollback and --to exclude each other: give one of them")
    if parsed.to and not parsed.because:
        raise UserError("--to needs --because: the champion's history says why")
    if parsed.rollback:
        throne.roll_back(parsed.because or "rolled back")
    elif parsed.to:
        throne.put(parsed.to, parsed.because)
    alias = throne.alias()
    if alias is None:
        print(f"{throne.target.name} has no champion yet: `eyas retrain` promotes the first")
        return 0
    print(table(("champion since", "draft", "because"), [(m.time, m.digest[:12], m.because) for m in alias.history]))
    print(f"\nchampion {alias.digest}")
    found = checkpoints_of(host, Lineage.of(host.records), alias.digest)
    print(
        "\n".join(f"checkpoint {folder} for {engine}" for engine, folder in found.items())
        or "checkpoint none: run the flow again"
    )
    return 0
