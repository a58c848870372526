"""The real vLLM that `make engine` builds, started on loopback for one verifier at a time."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kimi_adapters.engine_command import PLUGINS
from kimi_adapters.engine_server import serving

VERSION = "0.32.0"
ARGUMENTS = ["--dtype", "float32", "--max-model-len", "1024", "--enforce-eager"]
LAYERS = [2, 15, 27]  # whose states the small verifier's server gives


@dataclass(frozen=True)
class Served:
    """A server, its verifier (and so the model's name), and the folder that it writes states into."""

    url: str
    verifier: Path
    folder: Path


def environment_folder() -> Path | None:
    """vLLM's virtual environment; None where there is none."""
    named = os.environ.get("EYAS_ENGINE_VENV")
    return Path(named) if named else None


def command() -> list[str]:
    """How it is called."""
    found = environment_folder()
    assert found
    return [str(found / "bin" / "vllm")]


def environment() -> dict[str, str]:
    """What it needs on a CPU, and our connector on its path."""
    found = environment_folder()
    assert found
    return {"LD_PRELOAD": str(found / "lib" / "libiomp5.so"), "VLLM_CPU_KVCACHE_SPACE": "1", "PYTHONPATH": str(PLUGINS)}


@contextmanager
def vllm(directory: Path, log: Path, *arguments: str, more: Mapping[str, str] | None = None) -> Iterator[str]:
    """A server of ``directory`` under its folder's name, in float32; its address. It ends with the block."""
    whole = [*command(), "serve", str(directory), "--served-model-name", directory.name, *ARGUMENTS, *arguments]
    with serving(whole, log, environment={**environment(), **(more or {})}, deadline=900) as url:
        yield url
