"""A verifier's numeric configuration, read from its config.json by us, so that no library's change moves a key."""

import json
import os
from pathlib import Path
from typing import Any

from errors import UserError
from kimi_adapters import deepseek_config, llama_config
from kimi_adapters.config_fields import Fields, TextConfig, numeric_identity

__all__ = ["TextConfig", "numeric_identity", "parse_config", "read_config"]

_PARSERS = {
    llama_config.FAMILY: llama_config.parse_llama,
    **dict.fromkeys(deepseek_config.MODEL_TYPES, deepseek_config.parse_deepseek),
}
# What a multimodal checkpoint may say beside its text_config: Kimi-K2.5's own code copies the quantization there.
_OUTSIDE = ("quantization_config", "eos_token_id", "bos_token_id", "pad_token_id")


def read_config(directory: str | os.PathLike[str]) -> TextConfig:
    """Reads `directory`/config.json; a `text_config` inside it is taken, as multimodal checkpoints have it.

    UserError: no such directory or file, a family that is not supported, a missing or impossible field.
    """
    path = Path(directory) / "config.json"
    try:
        with open(path, encoding="utf-8") as file:
            values = json.load(file)
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); give a verifier directory in Hugging Face's layout."
        ) from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}); restore the verifier's config.json.") from error
    if not isinstance(values, dict):
        raise UserError(f"{path} is not a JSON object; restore the verifier's config.json.")
    return parse_config(values, str(path))


def parse_config(values: dict[str, Any], where: str) -> TextConfig:
    """The configuration of a family from config.json's values; `where` names their file in errors."""
    text = Fields(values, where).inside("text_config").values or values
    outside = {name: values[name] for name in _OUTSIDE if values.get(name) is not None and text.get(name) is None}
    fields = Fields({**text, **outside}, where)
    family = fields.take("model_type", str)
    if family not in _PARSERS:
        raise UserError(f"{where} is of the family {family!r}; supported: {', '.join(_PARSERS)}.")
    return _PARSERS[family](fields)
