"""The command line: it parses; ``running.commands`` and ``running.store_commands`` do."""

import argparse
import logging
import sys
from pathlib import Path

from artifacts.disk import full_disk, is_full
from artifacts.key import KeyFailure
from artifacts.store import BlobMissing
from errors import UserError
from running import commands, engine_commands, retraining, stopping, store_commands
from running.launch import ChildFailed
from running.push import push
from running.settings_file import load_settings
from running.window import CODE, WindowClosed


def main(arguments: list[str] | None = None) -> int:
    """Run ``eyas``; exit code 0, 1 for a failure or damage, 2 for a user's mistake (one sentence on standard error).

    130 where Ctrl-C stopped it, 75 where the window of time is closed.
    """
    parsed = _parser().parse_args(arguments)
    _set_up_logging(logging.WARNING if parsed.command == "plan" else logging.INFO)
    try:
        if "settings" not in parsed:
            return int(parsed.do(parsed))
        return int(parsed.do(load_settings(Path(parsed.settings), _overrides(parsed)), parsed))
    except UserError as error:
        return _say(error, 2)
    except WindowClosed as closed:
        return _say(closed, CODE)
    except (ChildFailed, KeyFailure, BlobMissing) as error:
        return _say(error, 1)
    except KeyboardInterrupt:
        return stopping.CODE
    except Exception as error:
        if is_full(error):
            return _say(full_disk(getattr(error, "filename", None) or "the store or the state folder"), 2)
        raise


def _say(error: Exception, code: int) -> int:
    print(f"eyas: {error}", file=sys.stderr)
    return code


def _overrides(parsed: argparse.Namespace) -> list[str]:
    limit = getattr(parsed, "limit", None)
    return [*parsed.set, *([f"limit={limit}"] if limit is not None else [])]


def _set_up_logging(level: int) -> None:
    """Our own lines, and warnings of others; Prefect's account of each task goes to its server, not to the terminal."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s  %(message)s", "%H:%M:%S"))
    runs = ("prefect.task_runs", "prefect.flow_runs")
    handler.addFilter(
        lambda record: record.name.split(".")[0] == "eyas" or (record.levelno >= logging.WARNING and record.name not in runs)
    )
    logging.getLogger().addHandler(handler)
    logging.getLogger("eyas").setLevel(level)
    logging.getLogger("eyas.reading").setLevel(logging.INFO)  # a plan must not read 600 GB in silence
    logging.raiseExceptions = False  # a stopped run may outlive its ephemeral server


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="eyas", description="Trains EAGLE-3 drafts as one cached flow.")
    subparsers = parser.add_subparsers(dest="command", required=True)

    def command(name: str, do: object, text: str) -> argparse.ArgumentParser:
        added = subparsers.add_parser(name, help=text, description=text)
        added.add_argument("settings", metavar="SETTINGS.yaml")
        added.add_argument("--set", action="append", default=[], metavar="section.key=value")
        added.set_defaults(do=do)
        return added

    for name, do, text in (
        ("run", commands.run, "run the flow"),
        ("plan", commands.plan, "say what would run, and why, without running it"),
    ):
        added = command(name, do, text)
        added.add_argument("--limit", type=int, metavar="N", help="a smoke run: few samples, gates only warn")
        added.add_argument("--json", action="store_true", help="print the list of nodes as JSON")

    retrain = command("retrain", retraining.retrain, "train on what is new, compare with the champion, promote or refuse")
    retrain.add_argument("--again", action="store_true", help="also where nothing is new: after a change of recipe or code")
    retrain.add_argument("--json", action="store_true", help="print the outcome and the list of nodes as JSON")

    synthesize = command(
        "synthesize", retraining.synthesize, "let the verifier answer prompts, and land the answers in a folder"
    )
    synthesize.add_argument("--into", default=".eyas/landed", metavar="FOLDER", help="where files land (default: .eyas/landed)")

    champion = command("champion", retraining.champion, "say which draft is champion, since when and why, or set another")
    champion.add_argument("--rollback", action="store_true", help="the champion before this one becomes champion again")
    champion.add_argument("--to", metavar="DIGEST", help="a draft, or its export, becomes champion; needs --because")
    champion.add_argument("--because", metavar="WHY", help="kept in the champion's history")

    verify = command("verify", store_commands.verify, "check the store; exit code 1 when something in it is damaged")
    verify.add_argument("--deep", action="store_true", help="read every byte and compare digests; else sizes only")
    verify.add_argument("--repair", action="store_true", help="put what is damaged aside, so that its producer runs again")

    gc = command("gc", store_commands.gc, "say what no alias and no recent run needs any more, or remove it")
    gc.add_argument("--yes", action="store_true", help="remove it; else it is only said")
    gc.add_argument(
        "--keep-runs",
        type=int,
        default=3,
        metavar="N",
        help="newest runs, and newest whole runs that ended well, whose artifacts stay (default: 3)",
    )

    show = command("show", store_commands.show, "say what an artifact is, what made it and what was made of it")
    show.add_argument("ref", metavar="REF", help="a digest or its first 6 digits or more, an alias, or a path")
    show.add_argument("--data", action="store_true", help="the data it was made from, with counts and exclusions")

    forget = command("forget", store_commands.forget, "drop conversations from shards, states and copies of sources")
    forget.add_argument("ids", nargs="+", metavar="ID")
    forget.add_argument("--yes", action="store_true", help="do it; else it is only said")

    adopt = command("adopt", commands.adopt, "keep what older code made, if some of it made again is the same")
    adopt.add_argument("stage", metavar="STAGE", help="the costly stage, as plans name it: hidden_states")
    adopt.add_argument("--shards", type=int, default=3, metavar="N", help="nodes that are made again (default: 3)")
    adopt.add_argument("--because", metavar="WHY", help="why states within the tolerance may stay although their bytes differ")

    command("push", push, "give the mirror what it lacks")
    _add_engine_commands(subparsers)
    return parser


def _add_engine_commands(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The commands about an engine; they take a verifier's directory in place of settings."""
    for name, do, text in (
        ("prove-layers", engine_commands.prove_layers, "say which residual streams an engine's hidden states are"),
        ("engine-command", engine_commands.engine_command, "print how a vLLM is started that gives hidden states"),
    ):
        added = subparsers.add_parser(name, help=text, description=text)
        added.add_argument("verifier", type=Path, metavar="VERIFIER_DIR")
        added.add_argument("--layer-ids", metavar="2,30,58", help="auxiliary layers (default: 2, L//2, L-3)")
        added.add_argument("--folder", type=Path, required=name == "engine-command", help="where the engine writes states")
        added.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16", help="the engine's dtype")
        added.set_defaults(do=do)
        added.add_argument("--cpu", action="store_true", help="for an engine without CUDA that is started")
        if name == "engine-command":
            continue
        added.add_argument("--endpoint", metavar="URL", help="where an engine serves the verifier (default: one is started)")
        added.add_argument("--command", dest="engine", metavar="COMMAND", help="how that is called (default: vllm)")
        added.add_argument("--model", help="the name under which it does (default: the only one)")
        added.add_argument("--api-key-env", metavar="NAME", help="the environment variable that holds the key")


if __name__ == "__main__":
    raise SystemExit(main())
