"""The layer-id proof of a vLLM that is started for it, and stopped: what ``eyas prove-layers`` does without an endpoint."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from tasks.engine_command_line import engine_words
from tasks.layer_table import layer_table, own_reference

_ROOM = 64  # tokens beyond the proof's text: the engine's own, and the one that it wants to spare


def started_layer_table(
    directory: Path, layer_ids: list[int] | None, dtype: str, program: Sequence[str], cpu: bool, api_key_env: str | None
) -> tuple[str, str | None]:
    """As ``layer_table``, for a vLLM called as ``program``; ``cpu`` takes the connector that works without CUDA."""
    import torch

    reference = own_reference(directory, dtype)  # before the engine takes the GPU's memory
    torch.cuda.empty_cache()
    room = len(reference.token_ids) + _ROOM
    with _states_engine(directory, layer_ids, dtype, program, cpu, room) as (url, folder):
        asked = {"url": url, "states_folder": str(folder), "api_key_env": api_key_env}
        return layer_table(directory, layer_ids, dtype, model=None, reference=reference, **asked)


@contextmanager
def _states_engine(
    directory: Path, layer_ids: list[int] | None, dtype: str, program: Sequence[str], cpu: bool, room: int
) -> Iterator[tuple[str, Path]]:
    """Its address, and the temporary folder that it writes states into. Its log stays where something goes wrong."""
    from kimi_adapters.engine_server import serving

    logs = Path(mkdtemp(prefix="eyas-engine-"))
    with TemporaryDirectory(prefix="eyas-states-") as folder:
        words = engine_words(directory, layer_ids, Path(folder), dtype, cpu, program)
        with serving([*words, "--max-model-len", str(room)], logs / "engine.log") as url:
            yield url, Path(folder)
    shutil.rmtree(logs)
