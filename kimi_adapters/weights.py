"""A checkpoint's text tensors by role. Importing this module loads no torch; reading a tensor does."""

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from errors import UserError
from kimi_adapters.config import TextConfig, read_config
from kimi_adapters.deepseek_config import DeepseekConfig
from kimi_adapters.deepseek_layout import WHOLE, layer_tensors
from kimi_adapters.tensor_file import TensorFile
from kimi_adapters.tensor_names import ROLES, canonical_name, layer_of, part_of, role_of

if TYPE_CHECKING:
    import torch

INDEX = "model.safetensors.index.json"


def text_entries(directory: str | os.PathLike[str]) -> list[tuple[str, str, TensorFile, str]]:
    """Every text tensor as (role, canonical name, file, name in it), sorted by role and name: what is hashed of them.

    Packed weights are there with their scales and shapes; a head tied to the embeddings has no entry of its own, and
    layers that predict further tokens are left out. UserError: missing or malformed files.
    """
    checkpoint = Checkpoint(directory)
    found = [(role_of(name) or "layer", name, *checkpoint.location(name)) for name in checkpoint.names]
    return sorted(found, key=lambda item: (ROLES.index(item[0]), item[1]))


def weight_files(directory: str | os.PathLike[str]) -> list[Path]:
    """The safetensors files of a checkpoint: those its index names, else model.safetensors. UserError when missing."""
    root = Path(directory)
    names = sorted(set(_weight_map(root).values())) or ["model.safetensors"]
    missing = [name for name in names if not (root / name).exists()]
    if missing:
        raise UserError(f"{root} lacks {', '.join(missing[:3])}; give a directory with the verifier's safetensors.")
    return [root / name for name in names]


def _weight_map(root: Path) -> dict[str, str]:
    """The index's file of each tensor; empty without an index."""
    index = root / INDEX
    if not index.exists():
        return {}
    try:
        with open(index, encoding="utf-8") as file:
            names = json.load(file)["weight_map"]
        if not names or not all(isinstance(name, str) for name in names.values()):
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{index} is not a safetensors index; restore it.") from error
    return dict(names)


class Checkpoint:
    """A verifier's directory: `config`, `files` (paths), `names` (canonical names of the text tensors), and how many
    tensors were `left_out`, by part.

    All that can be known from the files' headers is checked at opening. UserError when files are missing or broken,
    or when layers or their tensors are not what the configuration says: an engine that silently drops a layer gives
    states that look right, and a tensor missing in layer 60 would be found after hours.
    """

    def __init__(self, directory: str | os.PathLike[str]):
        self.directory = Path(directory)
        self.config: TextConfig = read_config(directory)
        self.files = weight_files(directory)
        self._location: dict[str, tuple[TensorFile, str]] = {}
        self._layer_names: dict[int, list[str]] = {}
        files = {path.name: TensorFile(path) for path in self.files}
        self._check_index(files)
        others = (name for file in files.values() for name in file.entries if not self._place(file, name))
        self.left_out = Counter(part_of(name) for name in others)
        self.names = list(self._location)
        for name in ("embed_tokens.weight", "norm.weight", self.lm_head_name):
            self.location(name)
        self._check_layers()

    def _check_index(self, files: dict[str, TensorFile]) -> None:
        for name, file_name in _weight_map(self.directory).items():
            if name not in files[file_name].entries:
                raise UserError(f"{self.directory / file_name} lacks {name!r}, which {INDEX} says it has; restore it.")

    def _place(self, file: TensorFile, tensor_name: str) -> bool:
        """Notes where a tensor is; False when the text model's forward has none such."""
        name, config = canonical_name(tensor_name), self.config
        if name is None:
            return False
        index = layer_of(name)
        if index is not None:
            if isinstance(config, DeepseekConfig) and 0 <= index - config.num_layers < config.mtp_layers:
                return False
            self._layer_names.setdefault(index, []).append(name)
        self._location[name] = (file, tensor_name)
        return True

    def _check_layers(self) -> None:
        expected = self.config.num_layers
        if sorted(self._layer_names) != list(range(expected)):
            raise UserError(
                f"{self.directory} has weights of {len(self._layer_names)} layers where its config.json says "
                f"{expected}; complete the checkpoint."
            )
        if isinstance(self.config, DeepseekConfig):
            for index in range(expected):
                self._check_tensors(self.config, index)

    def _check_tensors(self, config: DeepseekConfig, index: int) -> None:
        prefix = f"layers.{index}."
        wanted = {prefix + name: expected for name, expected in layer_tensors(config, index).items()}
        extra = sorted(set(self._layer_names[index]) - set(wanted))
        for name, expected in wanted.items():
            if name not in self._location:
                beside = f" and has {extra[0]!r}, which it does not read" if extra else ""
                raise UserError(f"{self.directory} has no tensor {name!r}{beside}; complete the checkpoint.")
            file, tensor_name = self._location[name]
            entry = file.entry(tensor_name)
            if expected.dtypes == WHOLE and entry.dtype in ("BF16", "F16"):
                raise UserError(
                    f"{file.path} has {name!r} as {entry.dtype}, rounded by a cast of all weights, and would choose other "
                    "experts; take the checkpoint as published, where it is F32."
                )
            if entry.shape != expected.shape or entry.dtype not in expected.dtypes:
                raise UserError(
                    f"{file.path} has {name!r} as {entry.dtype} {list(entry.shape)} where its config.json makes it "
                    f"{' or '.join(expected.dtypes)} {list(expected.shape)}; restore the checkpoint."
                )
        if extra:
            raise UserError(
                f"{self.directory} has the tensor {extra[0]!r}, which its config.json does not account for; "
                "restore the checkpoint."
            )

    def location(self, name: str) -> tuple[TensorFile, str]:
        """The file of a canonical name and the tensor's name in it. UserError if missing."""
        if name not in self._location:
            raise UserError(f"{self.directory} has no tensor {name!r}; complete the checkpoint.")
        return self._location[name]

    def read(self, name: str, dtype: "torch.dtype | None" = None, device: "torch.device | str" = "cpu") -> "torch.Tensor":
        """A tensor by its canonical name, in its stored dtype unless `dtype` says otherwise. UserError if missing."""
        file, tensor_name = self.location(name)
        entry = file.entry(tensor_name)
        tensor = _empty(entry.shape, entry.dtype)
        _fill(file, tensor_name, tensor)
        return tensor.to(device=device, dtype=dtype or tensor.dtype)

    def read_stacked(
        self, names: Sequence[Sequence[str]], dtype: "torch.dtype | None" = None, device: "torch.device | str" = "cpu"
    ) -> "torch.Tensor":
        """Matrices of one shape as [len(names), len(names[0]) · rows, columns]: those of names[i] over one another.

        Each is read into its place, with no copy between.
        """
        file, tensor_name = self.location(names[0][0])
        entry = file.entry(tensor_name)
        rows, columns = entry.shape
        stack = _empty((len(names), len(names[0]) * rows, columns), entry.dtype)
        for i, parts in enumerate(names):
            for j, name in enumerate(parts):
                file, tensor_name = self.location(name)
                if file.entry(tensor_name).dtype != entry.dtype:
                    raise UserError(f"{file.path} has {name!r} in another dtype than its neighbours; restore the checkpoint.")
                _fill(file, tensor_name, stack[i, j * rows : (j + 1) * rows])
        return stack.to(device=device, dtype=dtype or stack.dtype)

    def check_values(self, name: str, expected: Sequence[int]) -> None:
        """UserError unless the integer tensor holds just these values."""
        found = self.read(name).tolist()
        if found != list(expected):
            raise UserError(
                f"{self.directory} has {name!r} = {found} where its config.json makes it {list(expected)}; restore it."
            )

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
    def layer_bytes(self) -> int:
        """Bytes of all layers as they are stored."""
        return sum(map(self._bytes_of, self._layer_names.values()))

    @property
    def largest_layer_bytes(self) -> int:
        """Bytes of the largest layer as it is stored."""
        return max(map(self._bytes_of, self._layer_names.values()))

    def _bytes_of(self, names: Sequence[str]) -> int:
        entries = [file.entry(name) for file, name in (self._location[name] for name in names)]
        return sum(entry.end - entry.start for entry in entries)

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


def _empty(shape: Sequence[int], dtype: str) -> "torch.Tensor":
    import torch

    return torch.empty(tuple(shape), dtype=torch_dtype(dtype))


def _fill(file: TensorFile, tensor_name: str, tensor: "torch.Tensor") -> None:
    """Reads a stored tensor into a contiguous one on the CPU."""
    import torch

    if tensor.numel():
        file.read_into(tensor_name, tensor.reshape(-1).view(torch.uint8).numpy().data)


def torch_dtype(name: str) -> "torch.dtype":
    """The torch dtype of a safetensors dtype name."""
    import torch

    dtypes: dict[str, Any] = {
        "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
        "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "I64": torch.int64, "I32": torch.int32,
        "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    }  # fmt: skip
    return dtypes[name]
