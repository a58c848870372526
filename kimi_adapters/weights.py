"""A checkpoint's text tensors by role. Importing this module loads no torch; reading a tensor does."""

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from errors import UserError
from kimi_adapters.config import TextConfig, read_config
from kimi_adapters.tensor_file import TensorEntry, TensorFile

if TYPE_CHECKING:
    import torch

ROLES = ("embed", "norm", "lm_head", "layer")

# The text model sits under "model.", under "language_model.model." (Kimi-K2.5) or under "model.language_model.";
# the towers for other media have names that these components do not lead to.
_TEXT_TENSOR = re.compile(
    r"^(?:(?:model|language_model)\.)*"
    r"(?P<name>embed_tokens\.weight|norm\.weight|lm_head\.weight|layers\.(?P<layer>\d+)\.(?P<part>.+))$"
)
_ROLE_BY_NAME = {"embed_tokens.weight": "embed", "norm.weight": "norm", "lm_head.weight": "lm_head"}


def canonical_name(tensor_name: str) -> str | None:
    """The name without the text model's prefix ("layers.3.mlp.up_proj.weight"); None when it is no text tensor."""
    match = _TEXT_TENSOR.match(tensor_name)
    if match is None or (match["part"] or "").endswith("rotary_emb.inv_freq"):
        return None
    return match["name"]


def role_of(tensor_name: str) -> str | None:
    """One of ROLES, or None for what the text model does not use."""
    name = canonical_name(tensor_name)
    return None if name is None else _ROLE_BY_NAME.get(name, "layer")


def text_entries(directory: str | os.PathLike[str]) -> list[tuple[str, str, Path, TensorEntry]]:
    """Every text tensor as (role, canonical name, file, entry), sorted by role and name: what its hash is taken over.

    A head tied to the embeddings has no entry of its own. UserError: missing or malformed files.
    """
    found = []
    for path in weight_files(directory):
        with TensorFile(path) as file:
            for tensor_name, entry in file.entries.items():
                name, role = canonical_name(tensor_name), role_of(tensor_name)
                if name is not None and role is not None:
                    found.append((role, name, path, entry))
    return sorted(found, key=lambda item: (ROLES.index(item[0]), item[1]))


def weight_files(directory: str | os.PathLike[str]) -> list[Path]:
    """The safetensors files of a checkpoint: those its index names, else model.safetensors. UserError when missing."""
    root = Path(directory)
    index = root / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.exists():
        try:
            with open(index, encoding="utf-8") as file:
                names = sorted(set(json.load(file)["weight_map"].values()))
        except (ValueError, KeyError, AttributeError) as error:
            raise UserError(f"{index} is not a safetensors index; restore it.") from error
    missing = [name for name in names if not (root / name).exists()]
    if missing:
        raise UserError(f"{root} lacks {', '.join(missing[:3])}; give a directory with the verifier's safetensors.")
    return [root / name for name in names]


class Checkpoint:
    """A verifier's directory: `config`, `files` (paths) and `names` (canonical names of the text tensors).

    UserError when files are missing or broken, or when the layers do not match the configuration's count: an engine
    that silently drops a layer gives states that look right.
    """

    def __init__(self, directory: str | os.PathLike[str]):
        self.directory = Path(directory)
        self.config: TextConfig = read_config(directory)
        self.files = weight_files(directory)
        self._location: dict[str, tuple[TensorFile, str]] = {}
        for path in self.files:
            file = TensorFile(path)
            for tensor_name in file.entries:
                name = canonical_name(tensor_name)
                if name is not None:
                    self._location[name] = (file, tensor_name)
        self.names = list(self._location)
        self._layer_names: dict[int, list[str]] = {}
        for name in self.names:
            match = _TEXT_TENSOR.match(name)
            if match and match["layer"]:
                self._layer_names.setdefault(int(match["layer"]), []).append(name)
        self._check_layers()

    def _check_layers(self) -> None:
        expected = self.config.num_layers
        if sorted(self._layer_names) != list(range(expected)):
            raise UserError(
                f"{self.directory} has weights of {len(self._layer_names)} layers where its config.json says "
                f"{expected}; complete the checkpoint."
            )

    def read(self, name: str, dtype: "torch.dtype | None" = None, device: "torch.device | str" = "cpu") -> "torch.Tensor":
        """A tensor by its canonical name, in its stored dtype unless `dtype` says otherwise. UserError if missing."""
        import torch

        if name not in self._location:
            raise UserError(f"{self.directory} has no tensor {name!r}; complete the checkpoint.")
        file, tensor_name = self._location[name]
        entry = file.entry(tensor_name)
        tensor = torch.empty(entry.shape, dtype=torch_dtype(entry.dtype))
        if tensor.numel():
            file.read_into(tensor_name, tensor.reshape(-1).view(torch.uint8).numpy().data)
        return tensor.to(device=device, dtype=dtype or tensor.dtype)

    def embed(self, dtype: "torch.dtype | None" = None, device: "torch.device | str" = "cpu") -> "torch.Tensor":
        """The embedding table, [vocab, hidden]."""
        return self.read("embed_tokens.weight", dtype, device)

    def norm(self, dtype: "torch.dtype | None" = None, device: "torch.device | str" = "cpu") -> "torch.Tensor":
        """The final norm's gain, [hidden]."""
        return self.read("norm.weight", dtype, device)

    def lm_head(self, dtype: "torch.dtype | None" = None, device: "torch.device | str" = "cpu") -> "torch.Tensor":
        """The language-model head, [vocab, hidden]: the embedding table when the configuration ties them."""
        return self.read(self.lm_head_name, dtype, device)

    @property
    def lm_head_name(self) -> str:
        """The canonical name of the tensor that serves as the head."""
        return "embed_tokens.weight" if self.config.tie_word_embeddings else "lm_head.weight"

    def layer(
        self, index: int, dtype: "torch.dtype | None" = None, device: "torch.device | str" = "cpu"
    ) -> dict[str, "torch.Tensor"]:
        """The tensors of layer `index` by their names inside it ("self_attn.q_proj.weight")."""
        prefix = f"layers.{index}."
        return {name.removeprefix(prefix): self.read(name, dtype, device) for name in self._layer_names[index]}


def torch_dtype(name: str) -> "torch.dtype":
    """The torch dtype of a safetensors dtype name."""
    import torch

    dtypes: dict[str, Any] = {
        "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
        "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "I64": torch.int64, "I32": torch.int32,
        "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    }  # fmt: skip
    return dtypes[name]
