"""The command line: it loads settings and calls the flows that deployments call."""

import argparse
import json
import logging
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from artifacts.key import KeyFailure
from errors import UserError
from running.launch import ChildFailed
from running.tables import node_table, summary


def main(arguments: list[str] | None = None) -> int:
    """Run ``eyas``; exit code 0, 1 for a failure, 2 for a user's mistake (one sentence on standard error)."""
    parsed = _parser().parse_args(arguments)
    _set_up_logging(logging.WARNING if parsed.command == "plan" else logging.INFO)
    try:
        overrides = [*parsed.set, *([f"limit={parsed.limit}"] if parsed.limit else [])]
        raw = load_settings(Path(parsed.settings), overrides)
        if parsed.command == "push":
            from running.push import push

            return push(raw)
        return (_run if parsed.command == "run" else _plan)(raw, parsed.json)
    except UserError as error:
        print(f"eyas: {error}", file=sys.stderr)
        return 2
    except (ChildFailed, KeyFailure) as error:
        print(f"eyas: {error}", file=sys.stderr)
        return 1


def _set_up_logging(level: int) -> None:
    """Our own lines, and warnings of others; Prefect's account of each task goes to its server, not to the terminal."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s  %(message)s", "%H:%M:%S"))
    runs = ("prefect.task_runs", "prefect.flow_runs")
    handler.addFilter(lambda record: record.name == "eyas" or (record.levelno >= logging.WARNING and record.name not in runs))
    logging.getLogger().addHandler(handler)
    logging.getLogger("eyas").setLevel(level)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="eyas", description="Trains EAGLE-3 drafts as one cached flow.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("run", "run the flow"),
        ("plan", "say what would run, and why, without running it"),
        ("push", "give the mirror what it lacks"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("settings", metavar="SETTINGS.yaml")
        command.add_argument("--set", action="append", default=[], metavar="section.key=value")
        command.add_argument("--limit", type=int, metavar="N", help="a smoke run: few samples, gates only warn")
        command.add_argument("--json", action="store_true", help="print the list of nodes as JSON")
    return parser


def load_settings(path: Path, overrides: list[str]) -> Any:
    """The settings of a YAML file with ``section.key=value`` put over them; ``UserError`` names what is wrong."""
    import yaml
    from pydantic import ValidationError

    from tasks.settings import Settings

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise UserError(f"settings file {path} cannot be read ({error.strerror}): correct the path") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"settings file {path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise UserError(f"settings file {path} holds no mapping of settings: see deployments/demo.yaml")
    for override in overrides:
        _override(values, override)
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "settings"
        why = "is no setting" if first["type"] == "extra_forbidden" else f"is wrong: {first['msg']}"
        raise UserError(f"{where} in {path} {why}: see tasks/settings.py for every setting") from None


def _override(values: dict[str, Any], override: str) -> None:
    import yaml

    name, equals, text = override.partition("=")
    if not equals:
        raise UserError(f"--set {override} has no value: write --set section.key=value")
    *sections, key = name.split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise UserError(f"--set {override}: {section} is no section of settings")
    values[key] = yaml.safe_load(text)


def _plan(settings: Any, as_json: bool) -> int:
    from flows.planning import open_host, plan

    steps = plan(settings, open_host(settings)).steps
    print(json.dumps([asdict(step) for step in steps], indent=1) if as_json else node_table(steps))
    return 0


def _run(settings: Any, as_json: bool) -> int:
    from flows.planning import open_host, plan

    plan(settings, open_host(settings))  # a mistake is told before Prefect takes its seconds to start
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "120")
    os.environ.setdefault("PREFECT_LOGGING_EXTRA_LOGGERS", "eyas")
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    os.environ.setdefault("DO_NOT_TRACK", "1")
    os.environ.setdefault("PREFECT_SERVER_LOGGING_LEVEL", "CRITICAL")  # an ephemeral server is cut off at its end, and says so
    logging.getLogger("eyas").info(
        "starting Prefect%s", "" if os.environ.get("PREFECT_API_URL") else " with a server of its own"
    )
    from flows.served import train_draft_flow

    result = train_draft_flow(settings)
    print(json.dumps(result["nodes"], indent=1) if as_json else summary(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
