"""How a vLLM is started that gives a verifier's hidden states. No stage reaches this: ``eyas engine-command`` prints it, and
``eyas prove-layers`` starts it."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from kimi_adapters.config import read_config
from kimi_adapters.engine_command import PLUGINS, hidden_states_arguments
from kimi_adapters.layer_ids import default_layer_ids


def engine_words(
    verifier: Path, ids: list[int] | None, folder: Path, dtype: str, cpu: bool, program: Sequence[str] = ("vllm",)
) -> list[str]:
    """The command whose engine puts the states of the layers ``ids`` (None: the default ones) into ``folder``."""
    count = read_config(verifier).num_layers
    further = hidden_states_arguments(ids or default_layer_ids(count), count, folder.absolute(), without_cuda=cpu)
    command = [*program, "serve", str(verifier), "--dtype", dtype, *further]
    if cpu:  # compiled, it gave wrong text in bfloat16
        command = ["env", f"PYTHONPATH={PLUGINS}", *command, "--enforce-eager"]
    return command


def engine_command_line(verifier: Path, ids: list[int] | None, folder: Path, dtype: str, cpu: bool) -> str:
    """The same as a shell takes it."""
    return shlex.join(engine_words(verifier, ids, folder, dtype, cpu))
