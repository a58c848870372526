"""``eyas prove-layers`` and ``eyas engine-command``: about an engine that serves a verifier, without a flow."""

import shlex
from argparse import Namespace

from errors import UserError


def prove_layers(parsed: Namespace) -> int:
    """Print what each of the engine's states is; 1 where one is not what it should be."""
    table, fault = _of_running(parsed) if parsed.endpoint else _of_started(parsed)
    print(table)
    engine = f"the endpoint {parsed.endpoint}" if parsed.endpoint else "the engine"
    print(f"{engine} {fault}" if fault else "every state is the one asked for, the last before the norm")
    return 1 if fault else 0


def _of_running(parsed: Namespace) -> tuple[str, str | None]:
    from tasks.layer_table import layer_table

    if parsed.engine or parsed.cpu:
        raise UserError("--command and --cpu start an engine, and --endpoint names one that runs: leave either out")
    return layer_table(
        parsed.verifier,
        _ids(parsed.layer_ids),
        parsed.dtype,
        url=parsed.endpoint,
        model=parsed.model,
        api_key_env=parsed.api_key_env,
        states_folder=str(parsed.folder) if parsed.folder else None,
    )


def _of_started(parsed: Namespace) -> tuple[str, str | None]:
    from tasks.started_engine import started_layer_table

    if parsed.model or parsed.folder:
        raise UserError("--model and --folder are of an engine that runs: give its address with --endpoint, or leave them out")
    program = shlex.split(parsed.engine or "vllm")
    return started_layer_table(parsed.verifier, _ids(parsed.layer_ids), parsed.dtype, program, parsed.cpu, parsed.api_key_env)


def engine_command(parsed: Namespace) -> int:
    """Print the command line."""
    from tasks.engine_command_line import engine_command_line

    print(engine_command_line(parsed.verifier, _ids(parsed.layer_ids), parsed.folder, parsed.dtype, parsed.cpu))
    return 0


def _ids(text: str | None) -> list[int] | None:
    try:
        return [int(one) for one in text.split(",")] if text else None
    except ValueError:
        raise UserError(f"--layer-ids {text} are no layer numbers: write them as 2,30,58") from None
