"""An unpacked copy of a Kimi checkpoint: vLLM has no INT4 experts on a CPU. Its weights have the packed ones' exact values."""

import json
from pathlib import Path

from torch import Tensor

from kimi_adapters.int4 import unpack
from kimi_adapters.torch_file import write_tensors
from kimi_adapters.weights import Checkpoint

_PACKED, _SCALE, _SHAPE = "weight_packed", "weight_scale", "weight_shape"


def unpacked_copy(source: Path, folder: Path) -> Path:
    """Writes the text model of ``source`` into ``folder``, experts in bfloat16: no vision tensors, and no tokenizer."""
    checkpoint = Checkpoint(source)
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((source / "config.json").read_text())
    for values in (config, config["text_config"]):
        values.pop("quantization_config", None)
    config.pop("auto_map")  # its remote code is not in a tiny checkpoint
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    tensors = {}
    for name in checkpoint.names:
        module, _, part = name.rpartition(".")
        stored = checkpoint.location(name)[1]
        if part == _PACKED:
            tensors[stored.removesuffix(part) + "weight"] = _unpacked(checkpoint, module)
        elif part not in (_SCALE, _SHAPE):
            tensors[stored] = checkpoint.read(name)
    with open(folder / "model.safetensors", "wb") as file:
        write_tensors(file, tensors, metadata={"format": "pt"})
    return folder


def _unpacked(checkpoint: Checkpoint, module: str) -> Tensor:
    return unpack(checkpoint.read(f"{module}.{_PACKED}"), checkpoint.read(f"{module}.{_SCALE}"))
