"""A draft's directory as it is published: configuration, tensors and vocabulary, in speculators' form and names."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from errors import UserError
from kimi_adapters.draft_vocabulary import DraftVocabulary
from kimi_adapters.tensor_file import TensorFile
from kimi_adapters.torch_file import read_tensors


@dataclass(frozen=True)
class PublishedDraft:
    """`config` as speculators writes it, `tensors` under its names; `vocabulary` None: the verifier's whole."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    vocabulary: DraftVocabulary | None


def read_published(folder: str | os.PathLike[str]) -> PublishedDraft:
    """A directory in speculators' format. UserError: files that are missing or not a draft's."""
    path = Path(folder) / "config.json"
    try:
        config = json.loads(path.read_text())
        target = config["transformer_layer_config"]["vocab_size"]
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); give a draft's directory.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} does not describe a draft in speculators' format ({error}).") from error
    with TensorFile(Path(folder) / "model.safetensors") as file:
        tensors = read_tensors(file)
    if "d2t" not in tensors:
        return PublishedDraft(config, tensors, None)
    ids = torch.arange(len(tensors["d2t"])) + tensors["d2t"]
    return PublishedDraft(config, tensors, DraftVocabulary.of_tokens(ids.tolist(), target))
